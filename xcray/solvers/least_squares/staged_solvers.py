"""Solvers whose models are chains of stages: calibrated least squares and stagewise regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, Final, Literal

import numpy as np

from xcray.arrays import CSR, Int64, csr, frozen
from xcray.errors import ParameterError
from xcray.features.chain import Chain
from xcray.features.columns import Columns
from xcray.features.fourier import median_distance, random_fourier
from xcray.features.pca import fit_pca
from xcray.features.pipeline import FeaturePipeline, Rows
from xcray.kernels.sparse import take_rows
from xcray.solvers.contract import Solver
from xcray.solvers.declarations import (
    CompileCase,
    Link,
    ProblemShape,
    RecordSchema,
    ResourceNeeds,
    StoppingRule,
)
from xcray.solvers.least_squares.solver import MAX_FEATURES, SHARD_SEED
from xcray.solvers.least_squares.stage_worker import KEPT_BYTES, StageWorker
from xcray.solvers.least_squares.stages import FittedStage
from xcray.solvers.least_squares.stagewise import StageFitter, UpdateRule
from xcray.solvers.multinomial import make_shard, shard_rows, total_weight
from xcray.solvers.parameters import Parameters, parameter
from xcray.solvers.row_operator import warm_up
from xcray.solvers.synchronous_contract import RECORDS, TrainingRows, WorkerCalls

Blocks = Iterator[FeaturePipeline | None]
FOURIER, COLUMNS, GRADIENT, INPUT = "fourier", "columns", "gradient", "input"
# ridge of one block and of several, times the root of the number of rows; measured on MNIST
ONE_RIDGE, STAGE_RIDGE = 0.05, 0.2
BANDWIDTH: Final = 0.7  # of the median distance; measured on MNIST
SAMPLE_ROWS: Final = 4000  # rows of which the median distance is computed
ROWS_AT_A_TIME: Final = 256  # of this sample
PAIR_SECONDS: Final = 4e-11  # per row and pair of features of a block: moments and products
FEATURE_SECONDS: Final = 4e-11  # per row, input and random feature
MAX_CALIBRATED_LABELS: Final = 4096  # their moments take 1.6 GB
CHUNK_BYTES: Final = 16 << 20  # rows and features of a chunk
MAX_PREDICTIONS: Final = 1 << 27  # more predictions of rows are not kept if that is possible


class StagesSolver(Solver):
    """Base of solvers that end with stages instead of one matrix of weights.

    Subclasses have the parameters `lam`, `shards` and `seed`, and define `method`, `blocks` and
    `n_weights`.
    """

    family: ClassVar[Literal["synchronous"]] = "synchronous"
    records: ClassVar[RecordSchema] = RECORDS
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()
    revision: ClassVar[int] = 2

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
        return StoppingRule("tolerance", 0.0, self.n_stages, "all stages are fitted")

    def n_weights(self, n_inputs: int) -> int:
        """Return the features of a stage for `n_inputs` features of the data."""
        raise NotImplementedError

    def method(self, n_rows: int, simplex: bool) -> StageFitter:
        """Return how the stages are fitted. simplex: each row has one label."""
        raise NotImplementedError

    def by_moments(self, n_rows: int, n_labels: int) -> bool:
        """Return whether to compute gradients from moments, without predictions (N, K)."""
        return False

    def blocks(self, X: CSR, order: Callable[[], Int64]) -> Blocks:
        """Yield the features of each stage; X: (N, D) training rows. order: of the inputs."""
        raise NotImplementedError

    def check_labels(self, n_labels: int) -> None:
        """Raise ParameterError if the matrix of a calibration of `n_labels` does not fit."""
        if self.method(1, simplex=True).rule == "calibrated" and n_labels > MAX_CALIBRATED_LABELS:
            raise ParameterError(
                f"a calibration needs the square of three times the labels: {n_labels:,} labels "
                f"are more than {MAX_CALIBRATED_LABELS:,}; choose solver stagewise with rule=linear"
            )

    def create_worker(
        self, data: TrainingRows, number: int, workers: int, stopped: Callable[[], bool]
    ) -> StageWorker:
        """Return a worker with every `workers`-th shard from `number` on."""
        options: Any = {"total": total_weight(data.Y, data.weights), "weights": data.weights}
        n = data.X.n_rows
        X = data.X if data.in_memory else csr(np.zeros(n + 1), [], [], data.X.n_cols)
        shards = [
            make_shard(X, data.Y, shard_rows(n, self.shards, SHARD_SEED, shard), **options)
            for shard in range(number, self.shards, workers)
        ]
        if data.in_memory:
            return StageWorker(shards, self.link, stopped)
        return StageWorker(shards, self.link, stopped, kept_bytes=0, mapped=data.X)

    def fit(
        self, workers: WorkerCalls, data: TrainingRows, stages: tuple[FittedStage, ...] = ()
    ) -> Iterator[FittedStage]:
        """Yield the stages that follow `stages`, one after the other.

        Raises ParameterError if a block has too many features or lam is too small, Stopped, errors
        of workers, and Unavailable if scipy is missing.
        """
        D = data.X.n_cols
        self.check_labels(data.Y.n_cols)
        if self.n_weights(D) > MAX_FEATURES:
            raise ParameterError(
                f"a stage has {self.n_weights(D)} features, at most {MAX_FEATURES} fit: choose "
                "features=fourier or columns and a smaller block_size"
            )
        counts = np.diff(data.Y.indptr)
        method = self.method(int((counts > 0).sum()), simplex=bool((counts[counts > 0] == 1).all()))
        method = replace(method, by_moments=self.by_moments(*data.Y.shape))
        blocks = self.blocks(data.X, lambda: method.order_by_gradient(workers))
        yield from method.fit(workers, islice(blocks, len(stages), None), stages)

    def resources(self, shape: ProblemShape, workers: int, in_memory: bool = True) -> ResourceNeeds:
        """Return the needs: rows, second moments of a block, its features, predictions and stages.

        in_memory: see `TrainingRows`. Raises ParameterError for more labels than a calibration can
        have.
        """
        self.check_labels(shape.labels)
        block = self.n_weights(shape.features)
        moments, W = 8 * block**2, 4 * block * shape.labels
        weights = self.n_stages * block * shape.labels
        predictions = 16 * shape.rows * shape.labels
        features = min(KEPT_BYTES, 4 * block * shape.rows // workers)
        rows = 2.5 * shape.n_bytes
        if not in_memory:
            entries = 8 * shape.entries + 4 * shape.rows * shape.features * shape.dense
            features, rows = 0, 2.5 * (shape.n_bytes - entries)
        seconds = self.n_stages * shape.rows * block * (PAIR_SECONDS * block)
        seconds += self.n_stages * shape.rows * block * FEATURE_SECONDS * shape.features
        if self.by_moments(shape.rows, shape.labels):
            predictions, features = 0, 8 * self.n_stages * block**2
            seconds = PAIR_SECONDS * weights * block * self.n_stages
        worker = int(rows + predictions) // workers + features + 2 * moments + 4 * W + CHUNK_BYTES
        store = (workers + 1) * (moments + 2 * W) + 4 * weights
        return ResourceNeeds(
            3 * moments + 4 * weights, worker, store, 4 * weights, weights, seconds
        )

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        warm_up()


@dataclass(frozen=True)
class StagewiseSolver(Parameters, StagesSolver):
    """Stagewise regression: a chain of least-squares fits, each on a block of other features.

        z_t = yhat_{t-1} + F_t(x)' W_t

    The rule "linear" fits the residual of the predictions yhat by least squares; "calibrated" then
    fits the targets to the first three powers of z; "logistic" takes `inner_steps` accelerated
    steps of multinomial logistic regression, with yhat as logits. F_t are random Fourier features,
    or columns of the input: in random order, or those with the largest gradient first. Only blocks
    of second moments (block_size squared) and of weights travel; sums over row shards are added in
    their order, so that models are equal bit by bit for any number of workers.

    For sparse text: features=columns, rule=linear, block_size=500, and a larger lam (20 newsgroups:
    60 / N). Several labels per row are targets of 1 each; rule=logistic shares one between them.
    With rule=linear and columns of many labels (N K above 2^27), gradients are computed from
    moments of columns, and no predictions are kept.

        Example:
            >>> StagewiseSolver(blocks=2).n_stages
            2

    Source: Agarwal, Kakade, Karampatziakis, Song, Valiant, "Least squares revisited: scalable
    approaches for multi-class prediction", ICML 2014, algorithm 3; see `StageFitter` for
    what differs.
    """

    rule: str = parameter(
        "logistic",
        "how a stage follows the one before",
        choices=("linear", "calibrated", "logistic"),
    )
    features: str = parameter(
        FOURIER,
        "features of a stage: random Fourier features, or columns of the input in random order or "
        "by gradient",
        choices=(FOURIER, COLUMNS, GRADIENT),
    )
    stages: int = parameter(4, "number of stages", low=1, high=1024)
    block_size: int = parameter(2000, "features of a stage", low=1, high=MAX_FEATURES)
    lam: float = parameter(
        0.0,
        "ridge of a stage, relative to the mean loss; 0: 0.2 / sqrt(rows)",
        low=0.0,
    )
    components: int = parameter(
        0, "fourier: principal components that the features are made of; 0: the rows", low=0
    )
    bandwidth: float = parameter(
        BANDWIDTH, "fourier: bandwidth, as a share of the median distance of rows", above=0.0
    )
    inner_steps: int = parameter(4, "logistic: steps of a stage", low=1)
    shards: int = parameter(8, "number of row shards, part of the result's bits", low=1, high=4096)
    seed: int = parameter(0, "seed of the features", low=0, high=2**31 - 1)

    compile_cases: ClassVar[tuple[CompileCase, ...]] = (
        CompileCase({"stages": 1, "block_size": 16}, "single"),
    )

    @property
    def n_stages(self) -> int:
        """Return the number of stages."""
        return self.stages

    def n_weights(self, n_inputs: int) -> int:
        """Return the features of a stage."""
        return self.block_size if self.features == FOURIER else min(self.block_size, n_inputs)

    def method(self, n_rows: int, simplex: bool) -> StageFitter:
        """Return how the stages are fitted."""
        lam = self.lam or STAGE_RIDGE / math.sqrt(max(n_rows, 1))
        return StageFitter(_update_rule(self.rule), lam, self.shards, self.inner_steps, simplex)

    def by_moments(self, n_rows: int, n_labels: int) -> bool:
        """Return whether to compute gradients from moments, without predictions (N, K)."""
        few = n_rows * n_labels <= MAX_PREDICTIONS
        return self.rule == "linear" and self.features != FOURIER and not few

    def blocks(self, X: CSR, order: Callable[[], Int64]) -> Blocks:
        """Yield the features of each stage; columns start again after the last one."""
        D = X.n_cols
        if self.features == FOURIER:
            random = _RandomFeatures(X, self.components, self.bandwidth, self.seed)
            yield from (random.block(number, self.block_size) for number in range(self.stages))
            return
        columns = order() if self.features == GRADIENT else None
        if columns is None or not len(columns):
            columns = frozen(np.random.default_rng(self.seed).permutation(D), np.int64)
        size = self.n_weights(len(columns))
        starts = range(0, len(columns), size)
        for number in range(self.stages):
            lo = starts[number % len(starts)]
            yield Columns(D, frozen(np.sort(columns[lo : lo + size]), np.int64))


@dataclass(frozen=True)
class CalibratedLeastSquaresSolver(Parameters, StagesSolver):
    """Calibrated least squares: least squares and a cubic map of its scores, again and again.

    Each of `rounds` stages fits the residual of the predictions by least squares on the same
    features, and then the targets to the first three powers of the scores; with one label per row,
    predictions are projected on the probability simplex. Second moments and their Cholesky factor
    are computed once. Everything else is as in `stagewise`.

        Example:
            >>> CalibratedLeastSquaresSolver(rounds=3).n_stages
            3

    Source: Agarwal et al., "Least squares revisited", ICML 2014, algorithm 2.
    """

    features: str = parameter(
        INPUT,
        "features: those of the data, or random Fourier features",
        choices=(INPUT, FOURIER),
    )
    rounds: int = parameter(10, "number of stages; 5 are enough for fourier", low=1, high=1024)
    block_size: int = parameter(
        4000, "fourier: number of random features", low=1, high=MAX_FEATURES
    )
    lam: float = parameter(
        0.0, "ridge of a stage, relative to the mean loss; 0: 0.05 / sqrt(rows)", low=0.0
    )
    components: int = parameter(
        0, "fourier: principal components that the features are made of; 0: the rows", low=0
    )
    bandwidth: float = parameter(
        1.0, "fourier: bandwidth, as a share of the median distance of rows", above=0.0
    )
    shards: int = parameter(8, "number of row shards, part of the result's bits", low=1, high=4096)
    seed: int = parameter(0, "seed of the features", low=0, high=2**31 - 1)

    compile_cases: ClassVar[tuple[CompileCase, ...]] = (CompileCase({"rounds": 1}, "single"),)

    @property
    def n_stages(self) -> int:
        """Return the number of stages."""
        return self.rounds

    def n_weights(self, n_inputs: int) -> int:
        """Return the features of a stage."""
        return self.block_size if self.features == FOURIER else n_inputs

    def method(self, n_rows: int, simplex: bool) -> StageFitter:
        """Return how the stages are fitted."""
        lam = self.lam or ONE_RIDGE / math.sqrt(max(n_rows, 1))
        return StageFitter("calibrated", lam, self.shards, simplex=simplex)

    def blocks(self, X: CSR, order: Callable[[], Int64]) -> Blocks:
        """Yield the same features for each stage."""
        features: FeaturePipeline | None = None
        if self.features == FOURIER:
            random = _RandomFeatures(X, self.components, self.bandwidth, self.seed)
            features = random.block(0, self.block_size)
        for _ in range(self.rounds):
            yield features


class _RandomFeatures:
    """Random Fourier features of rows X (N, D), or of their principal components."""

    def __init__(self, X: CSR, components: int, bandwidth: float, seed: int) -> None:
        """Fit the components, if there are any, and scale `bandwidth` by the median distance.

        Raises ParameterError for more components than features, or too many features.
        """
        if components > min(X.shape) or (components and X.n_cols > MAX_FEATURES):
            raise ParameterError(
                f"components={components} needs as many rows and features, and at most "
                f"{MAX_FEATURES} features; the data have {X.n_rows} rows and {X.n_cols} features"
            )
        self._pca = fit_pca(X, components, centred=False) if components else None
        self._n_inputs, self._seed = components or X.n_cols, seed
        chosen = np.random.default_rng(seed).permutation(X.n_rows)[:SAMPLE_ROWS]
        sample = self._transform(X, frozen(np.sort(chosen), np.int64))
        self._bandwidth = bandwidth * _median_distance(sample, seed)

    def _transform(self, X: CSR, numbers: Int64) -> Rows:
        """Return rows of X or of their components, which are computed some rows at a time."""
        if self._pca is None:
            return take_rows(X, numbers)
        parts = np.array_split(numbers, max(1, -(-len(numbers) // ROWS_AT_A_TIME)))
        transform = self._pca.transform
        return np.concatenate([transform(take_rows(X, frozen(p, np.int64))) for p in parts])

    def block(self, number: int, n_outputs: int) -> FeaturePipeline:
        """Return features number `number`."""
        features = random_fourier(
            self._n_inputs, n_outputs, self._bandwidth, seed=self._seed, block=number
        )
        return features if self._pca is None else Chain((self._pca, features))


def _update_rule(name: str) -> UpdateRule:
    """Return the rule of this name."""
    rules: dict[str, UpdateRule] = {r: r for r in ("linear", "calibrated", "logistic")}
    return rules[name]


def _median_distance(rows: Rows, seed: int) -> float:
    """Return the median distance of random pairs of rows; 1 if most rows are equal."""
    distance = median_distance(rows, seed=seed) if rows.shape[0] > 1 else 0.0
    return distance if np.isfinite(distance) and distance > 0.0 else 1.0
