"""Apply a label change to a model: train the affected labels, copy the bytes of all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Int32, Int64, Pattern, distinct, frozen, pattern
from xcray.data.dataset import Dataset
from xcray.data.unseen import with_unseen
from xcray.errors import Conflict, InputError, ParameterError, ShapeMismatch, Stopped
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_rows
from xcray.measures import evaluate
from xcray.model.calibration import Calibration
from xcray.model.directory import DUALS, Staging
from xcray.model.label_groups import change_labels
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.solvers import SOLVERS, make_solver
from xcray.solvers.contract import IndependentSolver, WarmStartSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.arrow import read_csr
from xcray.storage.atomic import create_staging_directory, discard_directory
from xcray.telemetry.progress import Progress
from xcray.training.block_store import BlockStore
from xcray.training.capacity.preflight import merge_budget, worker_count
from xcray.training.edit.compose import (
    compose_bias,
    compose_label_table,
    compose_weights,
    count_missing_labels,
    summarize_label_table,
)
from xcray.training.report.summary import (
    drift_reference,
    label_table,
    measures_by_frequency,
    summarize_block,
)
from xcray.training.report.timeline import normalize_timeline
from xcray.training.run import TrainResult
from xcray.training.selection.warm_start import WarmRunner
from xcray.training.solve_labels import (
    LabelsToSolve,
    StoreObserver,
    TrainingData,
    check_local_pool,
    make_local_pool,
    solve_labels,
)
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import Timeline, balance, read_streams

T = TypeVar("T")
NOT_CALIBRATED = (
    "its curves were fitted to other scores and ranks; fit them again with "
    "`xcray calibrate MODEL DATASET -o NEW`"
)
NO_THRESHOLDS = "those of the earlier model are gone; fit them again with `xcray thresholds`"
NOT_RANKED = "its ranker was fitted to other labels; train again with `--rank` for one"
MAX_LISTED = 1000  # label names listed in a manifest


@dataclass(frozen=True)
class EditOptions:
    """Options of a label change.

    pool: "threads" or "serial". workers: 0 for one per core. run_dir: stores finished batches, so
    that the same change can be resumed (None: nothing is stored). ks: the k of P@k and similar
    measures.
    progress, stop: as in `xcray.training.train`.
    """

    pool: str = "threads"
    workers: int = 0
    run_dir: Path | None = None
    ks: tuple[int, ...] = (1, 3, 5)
    progress: Callable[[Progress], None] = field(default=lambda _: None)
    stop: StopFlag = field(default_factory=StopFlag)


class Update(NamedTuple):
    """What changed rows add to a label change, see `xcray.training.edit.update`.

    state: of the solver, with the changed rows. start: (K_data, N), dual variables from which
    labels are solved, in the numbers of the data set; None if the model has none. label_table: of
    the old labels, with their certificates on the changed rows. report: entries of the report.
    """

    state: Any
    start: CSR | None
    label_table: pa.Table
    report: dict[str, Any]


class LabelChange(NamedTuple):
    """A change of a model's labels, decided before any work.

    operation: "add", "remove", "merge", "rename", "retrain" or "update". names: of all labels of
    the new model, in order. rows: (K',) int64, the label of the old model for each new one, or -1.
    train_labels: (K',) int64, the label of the data set to train each new one on, or -1. groups:
    label of the data set -> further labels whose rows it also gets (merging). details: additional
    entries of the manifest. update: if the rows changed. evaluate: measure the new model.
    """

    operation: str
    names: list[str]
    rows: Int64
    train_labels: Int64
    details: dict[str, Any]
    groups: Mapping[int, Sequence[int]] = {}
    update: Update | None = None
    evaluate: bool = True


def _lost_parts(old: Model, is_calibrated: bool) -> dict[str, str]:
    """Return why parts of the old model are missing in the new one, entries of the report."""
    parts = (
        ("not_calibrated", None if is_calibrated else old.calibration, NOT_CALIBRATED),
        ("no_thresholds", old.label_thresholds, NO_THRESHOLDS),
        ("not_ranked", old.ranker, NOT_RANKED),
    )
    return {name: reason for name, part, reason in parts if part is not None}


def check_solver(model: Model) -> None:
    """Raise ParameterError if no solver made the model, such as a blend or an imported one."""
    name = model.manifest["solver"]
    if name not in SOLVERS:
        raise ParameterError(
            f"{model.path.name} was made by {name!r}, which is not a solver, so its labels cannot "
            "be trained: use a model of one of the solvers that `xcray solvers` lists",
            code="UNKNOWN_SOLVER",
        )


def check_output_path(out: str | Path) -> None:
    """Raise Conflict if `out` exists."""
    if Path(out).exists():
        raise Conflict(
            f"{Path(out).name} exists already; "
            "choose another path for the new model, or remove it first"
        )


def check_features(model: Model, data: Dataset) -> None:
    """Raise ShapeMismatch, with a fix, if the data set's features differ from the model's."""
    fix = "build it again from its source with `xcray data build FORMAT INPUT DIR --like MODEL_DIR`"
    if model.text is not None:
        if data.text is None or data.text.fingerprint != model.text.fingerprint:
            origin = (
                "by another text pipeline than the model's"
                if data.text is not None
                else "from no text, the model reads text"
            )
            raise ShapeMismatch(
                f"data set {data.name} was made {origin}; {fix}", code="OTHER_FEATURES"
            )
    elif data.n_features != model.n_features:
        sizes = f"has {data.n_features} features, the model {model.n_features}"
        raise ShapeMismatch(f"data set {data.name} {sizes}; {fix}", code="OTHER_FEATURES")
    elif data.feature_names != model.feature_names:
        raise ShapeMismatch(
            f"data set {data.name} has features of other names than the model; {fix}",
            code="OTHER_FEATURES",
        )


def apply_change(
    old: Model,
    data: Dataset | None,
    out: str | Path,
    change: LabelChange,
    options: EditOptions | None = None,
) -> TrainResult:
    """Apply `change` to `old` and publish the new model at `out` by one rename.

    data: source of training rows and held-out rows; None if nothing is trained. Raises InputError
    if labels cannot be trained independently, Conflict if `out` exists, Stopped.
    """
    return _EditRun(old, data, change, options or EditOptions()).run(Path(out))


class _EditRun:
    """State of one change."""

    def __init__(
        self, old: Model, data: Dataset | None, change: LabelChange, options: EditOptions
    ) -> None:
        self.old = old
        self.data = data
        self.change = change
        self.options = options
        self.labels_to_train = frozen(
            distinct(change.train_labels[change.train_labels >= 0]), np.int32
        )
        check_local_pool(options.pool)
        settings: dict[str, Any] = {
            "pool": options.pool,
            "workers": options.workers,
            "ks": options.ks,
        }
        # Otherwise the solver is not needed, and this version of xcray might not have it.
        if len(self.labels_to_train):
            check_solver(old)
            settings |= {"solver": old.manifest["solver"], "params": old.manifest["params"]}
        self.spec = TrainSpec(str(data.path if data else old.path), **settings)
        self.solver = make_solver(self.spec.solver, self.spec.params)
        self.workers = worker_count(self.spec)
        self.start_time = time.monotonic()
        self.phase_seconds = dict[str, float]()
        self.timeline: pa.Table | None = None
        self.report_extras: dict[str, Any] = {}
        if len(self.labels_to_train):
            self._label_solver()

    def run(self, out: Path) -> TrainResult:
        """Train, compose, evaluate and write."""
        data = self.data
        if data is None or not len(self.labels_to_train):
            return self._publish(out, None)
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = self.options.run_dir or create_staging_directory(out)
        try:
            return self._publish(
                out, self._run_phase("TRAINING", lambda: self._train(data, folder))
            )
        finally:
            if self.options.run_dir is None:
                discard_directory(folder)

    def _label_solver(self) -> IndependentSolver:
        """Return the solver. Raises InputError if it does not solve each label alone."""
        if self.solver.family != "independent":
            raise InputError(
                f"solver {self.spec.solver} trains all labels together, so none can be trained "
                "alone; train the whole model again"
            )
        return self.solver

    def _train(self, data: Dataset, folder: Path) -> SolvedLabels:
        """Return a block of all labels of the data set, in which the labels to train are trained.

        Its weights are mapped from `folder`.
        """
        rows = TrainingData(
            data.train.X,
            data.train.XT,
            merge_group_rows(data.train.YT, self.change.groups),
            data.train.weights,
        )
        parts = BlockStore(
            folder, self._fingerprint(data), n_labels=data.n_labels, n_features=data.n_features
        )
        labels = frozen(
            np.intersect1d(self.labels_to_train, parts.missing, assume_unique=True), np.int32
        )
        n_kept, solver = len(self.labels_to_train) - len(labels), self._label_solver()
        update = self.change.update
        start = None if update is None else update.start
        if len(labels):
            state = solver.load(*rows) if update is None else update.state
            runner = None if start is None else WarmRunner(cast("WarmStartSolver", solver), start)
            with Timeline(folder) as timeline:
                solve_labels(
                    LabelsToSolve(solver, labels, rows.cost_terms(solver)),
                    make_local_pool(self.options.pool, solver, state, self.workers, runner),
                    StoreObserver(
                        parts,
                        timeline,
                        lambda done: self._report_progress("TRAINING", n_kept + done),
                    ),
                    workers=self.workers,
                    stop=self.options.stop,
                )
        self.timeline = read_streams(folder)
        budget = merge_budget(self.spec, int(parts.lengths.sum()))
        trained = parts.merge(folder / "trained.arrow", budget=budget, allow_missing=True)
        if start is None:
            return trained
        parts.merge_duals(folder / DUALS, start.n_cols, budget)
        return trained._replace(duals=read_csr(folder / DUALS))

    def _fingerprint(self, data: Dataset) -> dict[str, Any]:
        """Return the data that identifies this run: as for a training from scratch, plus groups."""
        solver = {
            "solver": self.old.manifest["solver"],
            "revision": self.solver.revision,
            "params": self.solver.as_dict(),
        }
        groups = (
            {"groups": [[first, *others] for first, others in self.change.groups.items()]}
            if self.change.groups
            else {}
        )
        # an update starts from the dual variables of a model
        parent = {"model": self.old.sha256, **self.old.duals_digest} if self.change.update else {}
        return {**solver, "dataset": data.content_hash, "format": 1, **groups, **parent}

    def _publish(self, out: Path, trained: SolvedLabels | None) -> TrainResult:
        """Compose, evaluate and write the new model, and publish it by rename.

        No step holds all weights in memory.
        """
        old, change = self.old, self.change
        rows = np.where(change.train_labels >= 0, -1 - change.train_labels, change.rows)
        W, bias = (trained.W, trained.bias) if trained is not None else (old.W, old.b)
        budget = merge_budget(self.spec, old.nnz + (trained.W.nnz if trained is not None else 0))
        with Staging(out, budget, on_step=lambda: self._report_phase("MERGING")) as staging:
            self._run_phase(
                "MERGING", lambda: compose_weights(staging.weights, old.W, W, rows, budget=budget)
            )
            self._keep_duals(staging, trained, rows, budget)
            groups = old.groups
            if groups is not None:
                groups = change_labels(groups, change.rows, read_csr(staging.weights))
            index = staging.index(compose_bias(old.b, bias, rows), old.row_norm, groups)
            measures = self._run_phase("EVALUATING", lambda: self._measure(index))
            self._report_phase("PUBLISHING")
            return self._write_model(staging, index, trained, measures)

    def _keep_duals(
        self, staging: Staging, trained: SolvedLabels | None, rows: Int64, budget: int
    ) -> None:
        """Write the dual variables of all labels, if an update has those of the old ones."""
        start = None if self.change.update is None else self.change.update.start
        if start is None:
            return
        duals = start if trained is None or trained.duals is None else trained.duals
        compose_weights(staging.path / DUALS, start, duals, rows, budget=budget)
        size = (staging.path / DUALS).stat().st_size
        entries = read_csr(staging.path / DUALS).nnz
        self.report_extras["duals"] = {"entries": entries, "bytes": size}

    def _write_model(
        self,
        staging: Staging,
        index: SearchIndex,
        trained: SolvedLabels | None,
        measures: dict[str, float],
    ) -> TrainResult:
        """Write everything except the arrays, and publish by rename."""
        old, change = self.old, self.change
        new_block = None if trained is None else select_labels(trained, self.labels_to_train)
        table = None if new_block is None else label_table(new_block, self.solver, self.timeline)
        places = np.where(
            change.train_labels >= 0,
            -1 - np.searchsorted(self.labels_to_train, change.train_labels),
            change.rows,
        )
        update = change.update
        parent = old.label_table if update is None else update.label_table
        new_table = compose_label_table(parent, table, places)
        report = {**self._make_report(new_block), **summarize_label_table(new_table)}
        report |= {} if update is None else update.report
        if "groups" in old.manifest["report"]:
            report["groups"] = dict(old.manifest["report"]["groups"])
            joined = int((change.rows < 0).sum())
            report["groups"]["joined_later"] = report["groups"].get("joined_later", 0) + joined
        calibration = self._kept_calibration()
        report |= _lost_parts(old, is_calibrated=calibration is not None)
        settings = {
            name: old.manifest[name] for name in ("solver", "params", "seed", "dataset_hash")
        }
        if self.data is not None and (new_block is not None or update is not None):
            settings["dataset_hash"] = self.data.content_hash
        content = ModelContent(
            index.W,
            index.b,
            change.names,
            old.feature_names,
            text=old.text,
            link=old.manifest["link"],
            calibration=calibration,
            row_norm=old.row_norm,
            groups=index.groups,
            label_texts=old.label_texts,
        )
        record = TrainingRecord(
            **settings,
            measures=measures,
            report=report,
            label_table=new_table,
            timeline=None if self.timeline is None else normalize_timeline(self.timeline),
            provenance=[*old.provenance, self._provenance_step()],
            missing=count_missing_labels(new_table),
            reading=old.reading,
        )
        model = write_model(staging.target, content, record, staged=staging)
        return TrainResult(model.path, model.sha256, measures, report)

    def _kept_calibration(self) -> tuple[Calibration, dict[str, Any]] | None:
        """Return the old model's calibration if only names change, else None.

        It was fitted to scores and places among the old labels.
        """
        old = self.old
        if self.change.operation != "rename" or old.calibration is None:
            return None
        return old.calibration, {
            **old.calibration_report,
            "measures": {name: old.measures[name] for name in old.calibration_report["measured"]},
        }

    def _measure(self, index: SearchIndex) -> dict[str, float]:
        """Return measures on the held-out part; the old model's if only names change; else none."""
        if self.change.operation == "rename":
            return self.old.measures
        data = self.data if self.change.evaluate else None
        if data is None or data.test is None or not data.test.n_rows:
            return {}
        place, counts = match_changed_labels(self.change, data)
        truth = renumber_labels(data.test.Y, place, len(counts))
        truth, counts = with_unseen(truth, counts, data.test.unseen)
        top = index.query(data.test.X, max(self.options.ks), threads=self.workers).top
        self.report_extras |= {
            "data": {
                "name": data.name,
                "rows": data.train.n_rows,
                "held_out": data.test.n_rows,
            }
        }
        self.report_extras["drift"] = drift_reference(top, data, counts)
        self.report_extras["by_frequency"] = measures_by_frequency(
            top, truth, counts, self.options.ks
        )
        measures: dict[str, float] = evaluate(
            top, truth, ks=self.options.ks, label_counts=counts, n_train=data.train.n_rows
        )
        return measures

    def _provenance_step(self) -> dict[str, Any]:
        """Return the manifest entry of the change, without times, so that it is reproducible."""
        step: dict[str, Any] = {"operation": self.change.operation, "parent": self.old.sha256}
        for name, value in self.change.details.items():
            if isinstance(value, str | int):
                step[name] = value
            else:
                entries = list(value.items()) if isinstance(value, Mapping) else list(value)
                step[name] = entries[:MAX_LISTED]
                step[f"n_{name}"] = len(entries)
        if self.data is not None and (len(self.labels_to_train) or self.change.update):
            step["dataset_hash"] = self.data.content_hash
            step["revision"] = self.solver.revision
        return step

    def _make_report(self, trained: SolvedLabels | None) -> dict[str, Any]:
        """Return the report; JSON."""
        training_report: dict[str, Any] = (
            {} if trained is None else {"trained": summarize_block(trained, self.solver)}
        )
        if self.timeline is not None:
            training_report |= {
                "pool": self.options.pool,
                "workers": self.workers,
                **balance(self.timeline, self.workers),
            }
        return {
            "operation": self.change.operation,
            "labels": len(self.change.names),
            "labels_trained": len(self.labels_to_train),
            "labels_kept": int((self.change.rows >= 0).sum()),
            "seconds": {phase: round(seconds, 3) for phase, seconds in self.phase_seconds.items()},
            **training_report,
            **self.report_extras,
        }

    def _report_progress(self, phase: str, done: int) -> None:
        """Report progress. Raises Stopped if a stop was requested."""
        if self.options.stop.is_set():
            outcome = (
                "finished batches are kept"
                if self.options.run_dir is not None
                else "nothing new was written"
            )
            raise Stopped(f"stopped on request; the model is unchanged, {outcome}")
        seconds = time.monotonic() - self.start_time
        rate = done / seconds if phase == "TRAINING" and seconds > 0.0 else 0.0
        self.options.progress(
            Progress(
                phase, done, len(self.labels_to_train), seconds, rate, None, self.change.operation
            )
        )

    def _report_phase(self, phase: str) -> None:
        """Report a phase after all labels are trained."""
        self._report_progress(phase, len(self.labels_to_train))

    def _run_phase(self, phase: str, step: Callable[[], T]) -> T:
        """Run a step, report its phase, and record its seconds."""
        self._report_progress(phase, 0 if phase == "TRAINING" else len(self.labels_to_train))
        began = time.monotonic()
        result = step()
        self.phase_seconds[phase] = time.monotonic() - began
        return result


def merge_group_rows(YT: Pattern, groups: Mapping[int, Sequence[int]]) -> Pattern:
    """Return `YT` in which each label in `groups` also has the rows of its group's labels.

    YT: (K x N), starting at indptr 0.
    """
    for first, others in groups.items():
        union = distinct(np.concatenate([YT.row(k) for k in (first, *others)]))
        lo, hi = int(YT.indptr[first]), int(YT.indptr[first + 1])
        indptr = YT.indptr.copy()  # copy: mapped arrays are read-only
        indptr[first + 1 :] += len(union) - (hi - lo)
        YT = pattern(indptr, np.concatenate([YT.indices[:lo], union, YT.indices[hi:]]), YT.n_cols)
    return YT


def select_labels(block: SolvedLabels, labels: Int32) -> SolvedLabels:
    """Return some labels of a block of all labels, with their records; the weights are a copy."""
    rows = frozen(labels, np.int64)
    return SolvedLabels(
        labels,
        take_rows(block.W, rows),
        frozen(block.bias[labels], np.float64),
        block.records[labels],
    )


def match_labels(
    names: Sequence[str], data: Dataset, renamed: Mapping[str, str] = MappingProxyType({})
) -> tuple[Int64, Int64]:
    """Match the labels of a data set to the numbers of names of a model's labels.

    renamed: other names of labels of the data set. Returns (K_data,) int64, and the training rows
    per number. Labels missing in the model get numbers after its own: they count as true labels but
    cannot be answered.
    """
    ids: dict[str, int] = {}
    for number, name in enumerate(names):
        ids.setdefault(name, number)
    positions = np.empty(data.n_labels, np.int64)
    next_number = len(names)
    for d, name in enumerate(data.label_names.to_pylist()):
        positions[d] = ids.get(renamed.get(name, name), next_number)
        next_number += positions[d] == next_number
    counts = np.bincount(positions, data.label_counts, minlength=next_number).astype(np.int64)
    return positions, counts


def match_changed_labels(change: LabelChange, data: Dataset) -> tuple[Int64, Int64]:
    """Match the labels of a data set to the new model's, see `match_labels`.

    Merged labels have the number of their new label.
    """
    if change.update is not None:  # the new model has the labels of the data set
        return frozen(np.arange(data.n_labels), np.int64), data.label_counts
    into = change.details.get("into")
    renamed = {} if into is None else dict.fromkeys(change.details["labels"], into)
    positions, counts = match_labels(change.names, data, renamed)
    if change.groups:
        merged_rows = merge_group_rows(data.train.YT, change.groups)
        for first in change.groups:
            # A row with several labels of the group counts once.
            counts[positions[first]] = len(merged_rows.row(first))
    return positions, counts


def renumber_labels(Y: Pattern, numbers: Int64, n_cols: int) -> Pattern:
    """Return `Y` with label k renumbered to numbers[k].

    Labels with the same new number occur once per row.
    """
    row_of = np.repeat(np.arange(Y.n_rows), np.diff(Y.indptr))
    cells = distinct(row_of * n_cols + numbers[Y.indices[Y.indptr[0] : Y.indptr[-1]]])
    indptr = np.searchsorted(cells, np.arange(Y.n_rows + 1, dtype=np.int64) * n_cols)
    return pattern(indptr, cells % n_cols, n_cols)
