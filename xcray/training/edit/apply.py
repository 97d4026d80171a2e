"""From a model and a decided change of its labels to the new model: train what is to be trained, keep all other bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from xcray import metrics
from xcray.arrays import CSR, Float32, Int32, Int64, Pattern, frozen, pattern
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, ShapeMismatch, Stopped
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import take_rows
from xcray.model.calibration import Calibration
from xcray.model.directory import Staging
from xcray.model.model import Model, write_model
from xcray.solvers import make_solver
from xcray.solvers.solved_labels import Block
from xcray.storage.atomic import discard_directory, staging_directory
from xcray.telemetry.progress import Progress
from xcray.training.block_store import Parts
from xcray.training.capacity.preflight import merge_budget, workers_of
from xcray.training.edit.compose import (
    compose_bias,
    compose_classes,
    compose_weights,
    missing_classes,
    overall,
)
from xcray.training.report.summary import by_frequency, class_table, figures
from xcray.training.report.timeline import plain
from xcray.training.run import TrainResult
from xcray.training.solve_labels import (
    Rows,
    check_local,
    labels_are_alone,
    local_pool,
    solve_labels,
)
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag
from xcray.workers.timeline import Timeline, balance, read_streams

T = TypeVar("T")
SHOWN = 1000  # label names that a manifest tells one by one


@dataclass(frozen=True)
class Running:
    """How a change of labels runs.

    pool: "threads" or "serial"; workers: 0 for one per core; run_dir: keeps finished batches, so that the same change again
    does only what is missing (None: nothing is kept); ks: the k of P@k and so on; progress, stop: as in `xcray.training.train`.
    """

    pool: str = "threads"
    workers: int = 0
    run_dir: Path | None = None
    ks: tuple[int, ...] = (1, 3, 5)
    progress: Callable[[Progress], None] = field(default=lambda _: None)
    stop: StopFlag = field(default_factory=StopFlag)


class Change(NamedTuple):
    """What becomes of a model's labels, decided before any work.

    operation: "add", "remove", "merge", "rename" or "retrain"; names: of all labels of the new model, in order.
    rows: (K',) int64, for each the label of the old model that it is, or -1; trains: (K',) int64, for each the label of the
    data set that it is trained on, or -1. groups: label of the data set -> labels whose rows it takes too (merging).
    told: what the manifest tells of it beside the operation.
    """

    operation: str
    names: list[str]
    rows: Int64
    trains: Int64
    told: dict[str, Any]
    groups: Mapping[int, Sequence[int]] = {}


def check_out(out: str | Path) -> None:
    """Refuse to overwrite. Raises Conflict when there is something at `out`."""
    if Path(out).exists():
        raise Conflict(
            f"{Path(out).name} exists already; choose another path for the new model, or remove it first"
        )


def check_features(model: Model, data: Dataset) -> None:
    """Refuse a data set whose features are not the model's. Raises ShapeMismatch that says how to build one."""
    mend = (
        "build it again from its source with `xcray data build FORMAT INPUT DIR --like MODEL_DIR`"
    )
    if model.text is not None:
        if data.text is None or data.text.fingerprint != model.text.fingerprint:
            made = (
                "by another text pipeline than the model's"
                if data.text is not None
                else "from no text, the model reads text"
            )
            raise ShapeMismatch(
                f"data set {data.name} was made {made}; {mend}", code="OTHER_FEATURES"
            )
    elif data.n_features != model.n_features:
        sizes = f"has {data.n_features} features, the model {model.n_features}"
        raise ShapeMismatch(f"data set {data.name} {sizes}; {mend}", code="OTHER_FEATURES")
    elif not data.feature_names.equals(model.feature_names):
        raise ShapeMismatch(
            f"data set {data.name} has features of other names than the model; {mend}",
            code="OTHER_FEATURES",
        )


def remake(
    old: Model, data: Dataset | None, out: str | Path, change: Change, how: Running | None = None
) -> TrainResult:
    """Carry out `change` on `old` and publish the new model at `out` by one rename.

    data: what labels are trained on, and what the new model is measured on; None when nothing is trained. Raises InputError
    when labels can't be trained alone, Conflict when `out` exists, Stopped.
    """
    return _Remaking(old, data, change, how or Running()).run(Path(out))


class _Remaking:
    """One change under way: what its steps share."""

    def __init__(self, old: Model, data: Dataset | None, change: Change, how: Running) -> None:
        self.old = old
        self.data = data
        self.change = change
        self.how = how
        self.wanted = frozen(np.unique(change.trains[change.trains >= 0]), np.int32)
        check_local(how.pool)
        settings: dict[str, Any] = {"pool": how.pool, "workers": how.workers, "ks": how.ks}
        if len(self.wanted):  # else the solver may be one that this xcray does not have
            settings |= {"solver": old.manifest["solver"], "params": old.manifest["params"]}
        self.spec = TrainSpec(str(data.path if data else old.path), **settings)
        self.solver = make_solver(self.spec.solver, self.spec.params)
        self.workers = workers_of(self.spec)
        self.began = time.monotonic()
        self.seconds = dict[str, float]()
        self.timeline: pa.Table | None = None
        self.told: dict[str, Any] = {}
        if not labels_are_alone(self.solver) and len(self.wanted):
            solver = old.manifest["solver"]
            raise InputError(
                f"solver {solver} trains all labels together, so none can be trained alone; train the model anew"
            )

    def run(self, out: Path) -> TrainResult:
        """Train, compose, measure, write."""
        data = self.data
        if data is None or not len(self.wanted):
            return self._publish(out, None)
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = self.how.run_dir or staging_directory(out)
        try:
            return self._publish(out, self._timed("TRAINING", lambda: self._train(data, folder)))
        finally:
            if self.how.run_dir is None:
                discard_directory(folder)

    def _train(self, data: Dataset, folder: Path) -> Block:
        """A block of all labels of the data set, of which those to train are trained; its weights are mapped from `folder`."""
        rows = Rows(
            data.train.X,
            data.train.XT,
            with_groups(data.train.YT, self.change.groups),
            data.train.weights,
        )
        parts = Parts(
            folder, self._fingerprint(data), n_labels=data.n_labels, n_features=data.n_features
        )
        labels = frozen(np.intersect1d(self.wanted, parts.missing), np.int32)
        kept = len(self.wanted) - len(labels)

        if len(labels):
            with Timeline(folder) as timeline:
                solve_labels(
                    self.solver,
                    rows.terms(self.solver),
                    labels,
                    local_pool(self.how.pool, self.solver, self.solver.load(*rows), self.workers),
                    workers=self.workers,
                    commit=lambda result: parts.commit(result.block),
                    record=timeline.add,
                    stop=self.how.stop,
                    tick=lambda done, share: self._tell("TRAINING", kept + done),
                )
        self.timeline = read_streams(folder)
        budget = merge_budget(self.spec, int(parts.lengths.sum()))
        return parts.merge(folder / "trained.arrow", budget=budget, allow_missing=True)

    def _fingerprint(self, data: Dataset) -> dict[str, Any]:
        """What makes two runs the same run: the same as for a training from scratch, but for groups."""
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
        return {**solver, "dataset": data.content_hash, "format": 1, **groups}

    def _publish(self, out: Path, trained: Block | None) -> TrainResult:
        """The new model: composed, measured, written aside and renamed; no step holds all weights."""
        old, change = self.old, self.change
        rows = np.where(change.trains >= 0, -1 - change.trains, change.rows)
        W, bias = (trained.W, trained.bias) if trained is not None else (old.W, old.b)
        budget = merge_budget(self.spec, old.nnz + (trained.W.nnz if trained is not None else 0))
        with Staging(out, budget, tick=lambda: self._at("MERGING")) as staging:
            self._timed(
                "MERGING", lambda: compose_weights(staging.weights, old.W, W, rows, budget=budget)
            )
            index = staging.index(compose_bias(old.b, bias, rows))
            measures = self._timed("EVALUATING", lambda: self._measure(index))
            self._at("PUBLISHING")
            return self._write(staging, index.W, index.b, trained, measures)

    def _write(
        self,
        staging: Staging,
        W: CSR,
        b: Float32,
        trained: Block | None,
        measures: dict[str, float],
    ) -> TrainResult:
        """Everything of the model that is not its arrays, and the rename."""
        old, change = self.old, self.change
        fresh = None if trained is None else chosen(trained, self.wanted)
        table = None if fresh is None else class_table(fresh, self.solver.eps, self.timeline)
        places = np.where(
            change.trains >= 0, -1 - np.searchsorted(self.wanted, change.trains), change.rows
        )
        classes = compose_classes(old.classes, table, places)
        report = {**self._report(fresh), **overall(classes)}
        settings = {
            name: old.manifest[name]
            for name in ("solver", "params", "seed", "dataset_hash", "link")
        }
        if self.data is not None and fresh is not None:
            settings["dataset_hash"] = self.data.content_hash
        model = write_model(
            staging.target,
            staged=staging,
            W=W,
            b=b,
            label_names=change.names,
            feature_names=old.feature_names,
            text=old.text,
            measures=measures,
            report=report,
            classes=classes,
            timeline=None if self.timeline is None else plain(self.timeline),
            provenance=[*old.provenance, self._account()],
            missing=missing_classes(classes),
            calibration=self._calibration(),
            **settings,
        )
        return TrainResult(model.path, model.sha256, measures, report)

    def _calibration(self) -> tuple[Calibration, dict[str, Any]] | None:
        """That of the old model when only names change; none otherwise: it was fitted to scores and places among the old labels."""
        old = self.old
        if self.change.operation != "rename" or old.calibration is None:
            return None
        return old.calibration, {
            **old.calibrated,
            "measures": {name: old.measures[name] for name in old.calibrated["measured"]},
        }

    def _measure(self, index: SearchIndex) -> dict[str, float]:
        """Measures on the data set's held-out part; those of the old model when only names change; else none."""
        if self.change.operation == "rename":
            return self.old.measures
        if self.data is None or self.data.test is None or not self.data.test.n_rows:
            return {}
        place, counts = matched(self.change, self.data)
        truth = renumbered(self.data.test.Y, place, len(counts))
        top = index.query(self.data.test.X, max(self.how.ks), threads=self.workers).top
        self.told |= {
            "data": {
                "name": self.data.name,
                "rows": self.data.train.n_rows,
                "held_out": self.data.test.n_rows,
            }
        }
        self.told["by_frequency"] = by_frequency(top, truth, counts, self.how.ks)
        found: dict[str, float] = metrics.evaluate(
            top, truth, ks=self.how.ks, label_counts=counts, n_train=self.data.train.n_rows
        )
        return found

    def _account(self) -> dict[str, Any]:
        """What was done, for the manifest: no times, so that doing it again tells the same."""
        told: dict[str, Any] = {"operation": self.change.operation, "parent": self.old.sha256}
        for name, value in self.change.told.items():
            if isinstance(value, str):
                told[name] = value
            else:
                shown = list(value.items()) if isinstance(value, Mapping) else list(value)
                told[name] = shown[:SHOWN]
                told[f"n_{name}"] = len(shown)
        if self.data is not None and len(self.wanted):
            told["dataset_hash"] = self.data.content_hash
            told["revision"] = self.solver.revision
        return told

    def _report(self, trained: Block | None) -> dict[str, Any]:
        """Figures people ask for; JSON."""
        solved: dict[str, Any] = (
            {} if trained is None else {"trained": figures(trained, self.solver.eps)}
        )
        if self.timeline is not None:
            solved |= {
                "pool": self.how.pool,
                "workers": self.workers,
                **balance(self.timeline, self.workers),
            }
        return {
            "operation": self.change.operation,
            "labels": len(self.change.names),
            "labels_trained": len(self.wanted),
            "labels_kept": int((self.change.rows >= 0).sum()),
            "seconds": {phase: round(seconds, 3) for phase, seconds in self.seconds.items()},
            **solved,
            **self.told,
        }

    def _tell(self, phase: str, done: int) -> None:
        """Report progress. Raises Stopped when a stop was asked for."""
        if self.how.stop.is_set():
            kept = (
                "finished batches are kept"
                if self.how.run_dir is not None
                else "nothing new was written"
            )
            raise Stopped(f"stopped on request; the model is as it was, {kept}")
        seconds = time.monotonic() - self.began
        rate = done / seconds if phase == "TRAINING" and seconds > 0.0 else 0.0
        self.how.progress(
            Progress(phase, done, len(self.wanted), seconds, rate, None, self.change.operation)
        )

    def _at(self, phase: str) -> None:
        """Report a phase in which all labels are trained."""
        self._tell(phase, len(self.wanted))

    def _timed(self, phase: str, step: Callable[[], T]) -> T:
        """A step, its phase told and its seconds kept."""
        self._tell(phase, 0 if phase == "TRAINING" else len(self.wanted))
        began = time.monotonic()
        out = step()
        self.seconds[phase] = time.monotonic() - began
        return out


def with_groups(YT: Pattern, groups: Mapping[int, Sequence[int]]) -> Pattern:
    """`YT` (K x N, starting at indptr 0), where each label named in `groups` also has the rows of the labels of its group."""
    for first, others in groups.items():
        union = np.unique(np.concatenate([YT.row(k) for k in (first, *others)]))
        lo, hi = int(YT.indptr[first]), int(YT.indptr[first + 1])
        indptr = YT.indptr.copy()  # copy: mapped arrays are read-only
        indptr[first + 1 :] += len(union) - (hi - lo)
        YT = pattern(indptr, np.concatenate([YT.indices[:lo], union, YT.indices[hi:]]), YT.n_cols)
    return YT


def chosen(block: Block, labels: Int32) -> Block:
    """Some labels of a block of all labels, with their records; its weights are a copy."""
    rows = frozen(labels, np.int64)
    return Block(
        labels,
        take_rows(block.W, rows),
        frozen(block.bias[labels], np.float64),
        block.records[labels],
    )


def matched(change: Change, data: Dataset) -> tuple[Int64, Int64]:
    """The labels of a data set as numbers of the new model, by name: (K_data,) int64, and the training rows of each number.

    Labels that the model lacks get numbers after its own: they are true where they stand, and can't be answered. Labels
    that were merged have the number of the label they became.
    """
    ids: dict[str, int] = {}
    for number, name in enumerate(change.names):
        ids.setdefault(name, number)
    into = change.told.get("into")
    merged = set(change.told["labels"]) if into is not None else set()
    place = np.empty(data.n_labels, np.int64)
    beyond = len(change.names)
    for d, name in enumerate(data.label_names.to_pylist()):
        place[d] = ids.get(into if name in merged and into is not None else name, beyond)
        beyond += place[d] == beyond
    counts = np.bincount(place, data.label_counts, minlength=beyond).astype(np.int64)
    if change.groups:
        whole = with_groups(data.train.YT, change.groups)
        for first in change.groups:
            counts[place[first]] = len(
                whole.row(first)
            )  # a row with several labels of the group counts once
    return place, counts


def renumbered(Y: Pattern, place: Int64, n_cols: int) -> Pattern:
    """`Y` with label k called place[k]; labels that become one are there once."""
    row_of = np.repeat(np.arange(Y.n_rows), np.diff(Y.indptr))
    cells = np.unique(row_of * n_cols + place[Y.indices[Y.indptr[0] : Y.indptr[-1]]])
    indptr = np.searchsorted(cells, np.arange(Y.n_rows + 1, dtype=np.int64) * n_cols)
    return pattern(indptr, cells % n_cols, n_cols)
