"""Base of solvers whose models are chains of stages: a round of the training is a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from xcray.arrays import CSR, Float32, Int64, TopK, csr, frozen
from xcray.errors import ParameterError
from xcray.features.pipeline import FeaturePipeline
from xcray.index.staged import StageCalibration
from xcray.kernels.sparse import row_range
from xcray.solvers.declarations import (
    CompileCase,
    Exports,
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    StoppingRule,
)
from xcray.solvers.group_contract import (
    GroupSolver,
    Layout,
    Program,
    Round,
    StagedModel,
    TrainingRows,
    WorkerCalls,
)
from xcray.solvers.held_out import HeldOut, PartialTopK, split_rows, top_k
from xcray.solvers.label_weights import RECORDS
from xcray.solvers.least_squares.solver import MAX_FEATURES, SHARD_SEED
from xcray.solvers.least_squares.stage_worker import KEPT_BYTES, StageWorker
from xcray.solvers.least_squares.stages import (
    FittedStage,
    StageScores,
    model_stages,
    predict_stages,
)
from xcray.solvers.least_squares.stagewise import StageFitter
from xcray.solvers.row_operator import warm_up
from xcray.solvers.row_shards import make_shard, shard_rows, total_weight
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.array_files import Arrays
from xcray.storage.checkpoints import COPIES_ON_DISK, Groups, TrainingState

Blocks = Iterator[FeaturePipeline | None]
PAIR_SECONDS: Final = 4e-11  # per row and pair of features of a block: moments and products
FEATURE_SECONDS: Final = 4e-11  # per row and product for a random feature
MAX_JOINT_LABELS: Final = 1024  # calibrated on the scores of all labels; moments take 100 MB
PATIENCE: Final = 2  # stages without a fall of the held-out error that end a training
CHUNK_BYTES: Final = 16 << 20  # rows and features of a chunk
SCORE_CELLS: Final = 1 << 22  # scores in memory at a time: 16 MB
MAX_HELD_OUT_CELLS: Final = 1 << 26  # held-out scores kept between stages, at most: 256 MB


class StagesSolver(GroupSolver, Protocol):
    """Base of solvers that end with stages instead of one matrix of weights.

    Subclasses have the parameters `lam`, `shards` and `seed`, and define `method`, `blocks` and
    `n_weights`, and `held_out_share` if the number of stages is chosen on training rows that are
    left out. A round is a stage.
    """

    exports: ClassVar[Exports] = "stages"
    maps_rows: ClassVar[bool] = True
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()
    revision: ClassVar[int] = 3

    lam: float
    shards: int
    seed: int

    @property
    def link(self) -> Link:
        """Return the link of models whose last stage has no calibration."""
        return self.method(1, simplex=True).link

    @property
    def n_stages(self) -> int:
        """Return the number of stages."""
        raise NotImplementedError

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends: after the last stage, without a tolerance."""
        early = f"the error of held-out training rows has not fallen for {PATIENCE} stages"
        reached, names = "all stages are fitted", ("tolerance", "max_rounds")
        return StoppingRule("tolerance", 0.0, self.n_stages, reached, names, early)

    @property
    def held_out_share(self) -> float:
        """Return the share of the training rows that are left out to choose the stages."""
        return 0.0

    def n_weights(self, n_inputs: int) -> int:
        """Return the features of a stage for `n_inputs` features of the data."""
        raise NotImplementedError

    def products(self, n_inputs: int) -> int:
        """Return the products that a random feature of a row takes."""
        return n_inputs

    def method(self, n_rows: int, simplex: bool) -> StageFitter:
        """Return how the stages are fitted. simplex: each row has one label."""
        raise NotImplementedError

    def by_moments(self, n_rows: int, n_labels: int) -> bool:
        """Return whether to compute gradients from moments, without predictions (N, K)."""
        return False

    def blocks(self, X: CSR, order: Callable[[int], Int64]) -> Blocks:
        """Yield the features of each stage; X: (N, D) training rows.

        order: returns the inputs by gradient, for the n-th pass over them.
        """
        raise NotImplementedError

    def create_worker(
        self, rows: TrainingRows, number: int, layout: Layout, stopped: Callable[[], bool]
    ) -> StageWorker:
        """Return a worker with every P-th shard from `number` on, for P workers."""
        weights, held_out = rows.weights, None
        if self.held_out_share:
            held_out = frozen(split_rows(rows.Y, self.held_out_share, self.seed), np.int64)
            weights = np.ones(rows.X.n_rows, np.float32) if weights is None else weights.copy()
            weights[held_out] = 0.0
        options: Any = {"total": total_weight(rows.Y, weights), "weights": weights}
        n, in_memory = rows.X.n_rows, layout.in_memory
        X = rows.X if in_memory else csr(np.zeros(n + 1), [], [], rows.X.n_cols)
        shards = [
            make_shard(X, rows.Y, shard_rows(n, self.shards, SHARD_SEED, shard), **options)
            for shard in range(number, self.shards, layout.workers)
        ]
        if in_memory:
            return StageWorker(shards, self.link, stopped, held_out=held_out)
        return StageWorker(shards, self.link, stopped, 0, rows.X, held_out)

    def program(
        self, calls: WorkerCalls, rows: TrainingRows, state: TrainingState | None = None
    ) -> Program:
        """Fit the stages one after the other; with held-out rows, until they get worse.

        Raises ParameterError if a block has too many features, lam is too small or a result is not
        finite, Stopped, errors of workers, and Unavailable if scipy is missing.
        """
        D, method = rows.X.n_cols, self._method(rows)
        width = self.n_weights(D) + rows.Y.n_cols * (method.rule == "previous")
        if width > MAX_FEATURES:
            raise ParameterError(
                f"a stage has {width} features, at most {MAX_FEATURES} fit: choose "
                "features=fourier or columns, a smaller block_size, or rule=linear for many labels"
            )
        order: dict[str, Int64] = {} if state is None else dict(state.groups["order"]())
        stages: tuple[FittedStage, ...] = ()

        def order_by_gradient(number: int) -> Int64:
            name = "0" if method.by_moments else str(number)
            if name not in order:
                order[name] = method.order_by_gradient(calls, stages)
            return order[name]

        blocks = self.blocks(rows.X, order_by_gradient)
        errors = [] if state is None else list(state.note["errors"])
        stages = () if state is None else _saved_stages(state, blocks, state.note["number"])
        held_out = _HeldOutScores(rows, method.chain)
        for stage in stages:
            held_out.add(stage)
        fitted = method.fit(calls, blocks, stages)
        while not (late := len(stages) - _best(errors, len(stages)) >= PATIENCE):
            if (new := next(fitted, None)) is None:
                break
            stages = (*stages, new)
            held_out.add(new)
            entry: dict[str, Any] = {"features": sum(len(each.W) for each in stages)}
            if self.held_out_share:
                errors.append(method.held_out_error(calls, stages))
                entry["held_out_error"] = errors[-1]
            best = _best(errors, len(stages))
            note = {"number": len(stages), "best": best, "errors": list(errors), "n_inputs": D}
            state = TrainingState(note, _groups(stages, order))
            model = _model(stages[:best], rows, method.chain)
            yield Round(len(stages), state, entry, held_out.evaluate(), staged=model)
        return self.stopping.early if late else self.stopping.reached

    def export(
        self, calls: WorkerCalls, state: TrainingState, positives: Int64
    ) -> Iterator[SolvedLabels]:
        """Yield all labels without weights: the stages have them."""
        sizes = [state.groups[f"stage-{n:04d}"]()["W"].size for n in range(state.note["best"])]
        yield _block(sizes, positives, state.note["n_inputs"])

    def staged(self, state: TrainingState, rows: TrainingRows) -> StagedModel:
        """Return the model of a finished training."""
        order = state.groups["order"]()
        blocks = self.blocks(
            rows.X, lambda number: frozen(order.get(str(number), order["0"]), np.int64)
        )
        stages = _saved_stages(state, blocks, state.note["best"])
        return _model(stages, rows, self.method(1, simplex=True).chain)

    def resources(self, shape: ProblemShape, layout: Layout) -> ResourceNeeds:
        """Return the needs: rows, second moments of a block, its features, predictions, stages."""
        block, workers = self.n_weights(shape.features), layout.workers
        rule = self.method(1, simplex=True).rule
        block += shape.labels * (rule == "previous")
        moments, W = 8 * block**2, 4 * block * shape.labels
        if rule == "calibrated" and shape.labels <= MAX_JOINT_LABELS:
            moments = max(moments, 8 * (1 + 4 * shape.labels) ** 2)
        weights = self.n_stages * block * shape.labels
        predictions = 16 * shape.rows * shape.labels
        features = min(KEPT_BYTES, 4 * block * shape.rows // workers)
        rows = 2.5 * shape.n_bytes
        if not layout.in_memory:
            entries = 8 * shape.entries + 4 * shape.rows * shape.features * shape.dense
            features, rows = 0, 2.5 * (shape.n_bytes - entries)
        seconds = self.n_stages * shape.rows * block * (PAIR_SECONDS * block)
        products = self.n_stages * shape.rows * block * self.products(shape.features)
        seconds += FEATURE_SECONDS * products
        if self.by_moments(shape.rows, shape.labels):
            predictions, features = 0, 8 * self.n_stages * block**2
            seconds = PAIR_SECONDS * weights * block * self.n_stages
        worker = int(rows + predictions) // workers + features + 2 * moments + 4 * W + CHUNK_BYTES
        store = (workers + 1) * (moments + 2 * W) + 4 * weights
        saved = COPIES_ON_DISK * 4 * weights
        return ResourceNeeds(3 * moments + 4 * weights, worker, store, saved, weights, seconds)

    def _method(self, rows: TrainingRows) -> StageFitter:
        """Return how the stages of these rows are fitted."""
        counts = np.diff(rows.Y.indptr)
        simplex = bool((counts[counts > 0] == 1).all()) and rows.Y.n_cols <= MAX_JOINT_LABELS
        method = self.method(int((counts > 0).sum()), simplex)
        return replace(method, by_moments=self.by_moments(*rows.Y.shape))

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()


def _best(errors: Sequence[float], number: int) -> int:
    """Return how many of `number` stages have the smallest held-out error; all without errors."""
    return number if not errors else 1 + int(np.argmin(errors))


def _groups(stages: Sequence[FittedStage], order: Arrays) -> Groups:
    """Return the arrays of a state: of each stage, and the order of the inputs if it is known."""
    groups = {f"stage-{number:04d}": partial(_arrays, each) for number, each in enumerate(stages)}
    return {"order": lambda: order, **groups}


def _arrays(stage: FittedStage) -> Arrays:
    """Return the arrays of a stage; its features are made again from rows and parameters."""
    arrays: dict[str, Any] = {"W": stage.W}
    if stage.P is not None:
        arrays["P"] = stage.P
    if (calibration := stage.calibration) is not None:
        simplex = np.array([calibration.simplex], np.int8)
        arrays |= {"C": calibration.C, "c": calibration.c, "simplex": simplex}
    return arrays


def _saved_stages(state: TrainingState, blocks: Blocks, count: int) -> tuple[FittedStage, ...]:
    """Return the first `count` stages of a state, with the next `blocks` as their features."""
    stages = list[FittedStage]()
    for number in range(count):
        arrays, calibration = state.groups[f"stage-{number:04d}"](), None
        if "C" in arrays:
            C, c = (frozen(arrays[name], np.float32) for name in ("C", "c"))
            calibration = StageCalibration(C, c, bool(arrays["simplex"][0]))
        P = frozen(arrays["P"], np.float32) if "P" in arrays else None
        stages.append(FittedStage(frozen(arrays["W"], np.float32), next(blocks), calibration, P))
    return tuple(stages)


def _model(stages: Sequence[FittedStage], rows: TrainingRows, chain: int) -> StagedModel:
    """Return the model of stages; chain: of each of several chains, 0 for one."""
    positives = np.bincount(rows.Y.indices, minlength=rows.Y.n_cols)
    block = _block([stage.W.size for stage in stages], positives, rows.X.n_cols)
    model = model_stages(stages, chain)
    flat = [FittedStage(np.asarray(s.W), s.features, s.calibration) for s in model]
    return StagedModel(model, partial(_query, flat), block)


def _block(sizes: Sequence[int], positives: Int64, n_inputs: int) -> SolvedLabels:
    """Return all labels without weights; sizes: number of weights of each stage."""
    K = len(positives)
    records = np.zeros(K, RECORDS.dtype)
    records["label"], records["positives"], records["rounds"] = np.arange(K), positives, len(sizes)
    records["nnz"] = sum(sizes) // max(K, 1)
    W = csr(np.zeros(K + 1, np.int64), [], [], n_inputs)
    labels, bias = frozen(np.arange(K), np.int32), frozen(np.zeros(K), np.float64)
    return SolvedLabels(labels, W, bias, records)


def _query(stages: Sequence[FittedStage], X: CSR, k: int) -> TopK:
    """Return the k best labels of rows (n, D) under the stages, in float32."""
    K, parts = stages[0].W.shape[1], list[PartialTopK]()
    step = max(1, SCORE_CELLS // max(K, 1))
    for lo in range(0, max(X.n_rows, 1), step):
        scores = predict_stages(stages, row_range(X, lo, min(lo + step, X.n_rows)))
        parts.append(top_k(scores.astype(np.float64), 0, k))
    labels, scores = (
        np.concatenate([getattr(part, name) for part in parts]) for name in TopK._fields
    )
    return TopK(frozen(labels, np.int32), frozen(scores, np.float64))


class _HeldOutScores:
    """Predictions of the first held-out rows, as many as fit, averaged over chains of stages."""

    def __init__(self, rows: TrainingRows, chain: int) -> None:
        K, X = rows.Y.n_cols, row_range(rows.X, 0, 0)
        if rows.held_out is not None:
            most = MAX_HELD_OUT_CELLS // max(K, 1)
            X = row_range(rows.held_out[0], 0, min(rows.held_out[0].n_rows, most))
        self._X, self._K, self._chain, self._number = X, K, chain, 0
        self._at = StageScores(X, K)
        self._sum: Float32 = self._at.scores  # of the chains before, as far as there are any

    def add(self, stage: FittedStage) -> None:
        """Add a stage."""
        if self._chain and self._number and self._number % self._chain == 0:
            first = self._number == self._chain
            self._sum = self._at.scores if first else self._sum + self._at.scores
            self._at = StageScores(self._X, self._K)
        self._at.add(stage)
        self._number += 1

    def evaluate(self) -> HeldOut | None:
        """Return the evaluation of the rows; None without any."""
        scores, n = self._at.scores, self._X.n_rows
        if not n:
            return None
        if self._chain and self._number > self._chain:
            scores = self._sum + scores
        best = top_k(scores.astype(np.float64), 0)
        return HeldOut(None, best.labels, best.scores, frozen(np.arange(n), np.int64))
