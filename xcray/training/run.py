"""train(spec): from a data set directory to a published model, resumable at any point."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from xcray.arrays import CSR, Float32, TopK
from xcray.data.dataset import Dataset
from xcray.errors import Conflict, InputError, Stopped
from xcray.index.search import SearchIndex
from xcray.metrics import evaluate
from xcray.model.calibration import Calibration
from xcray.model.directory import Staging
from xcray.model.model import write_model
from xcray.solvers import make_solver
from xcray.solvers.solved_labels import Block
from xcray.system.cores import cores
from xcray.telemetry.progress import NONE, Progress
from xcray.training.block_store import Parts
from xcray.training.calibration.fit import calibrated, held_out
from xcray.training.capacity.monitor import Watch
from xcray.training.capacity.preflight import check, limits_of, merge_budget
from xcray.training.joint import keep_history
from xcray.training.partial import check_some, partial
from xcray.training.report.summary import by_frequency
from xcray.training.report.timeline import plain
from xcray.training.spec import TrainSpec
from xcray.training.strategies import way_of
from xcray.training.strategy import Desk, Setting
from xcray.workers.pool import StopFlag
from xcray.workers.run_metrics import Vitals
from xcray.workers.timeline import balance, read_streams


class TrainResult(NamedTuple):
    """Where the model is, its content hash, measures as fractions ("P@1": 0.63), and the training's report."""

    model_path: Path
    sha256: str
    measures: dict[str, float]
    report: dict[str, Any]


def train(
    spec: TrainSpec,
    *,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None] | None = None,
    stop: StopFlag | None = None,
    job: str = "local",
    notes: Mapping[str, Any] | None = None,
) -> TrainResult:
    """Train `spec` and publish the model directory `out`.

    run_dir: keeps finished batches; call again with the same one to do only what is missing. progress: called with a
    Progress now and then. stop: set it, and Stopped is raised within a kernel slice. job: names Ray actors. notes: more for
    the model's report (JSON).
    With spec.max_seconds the most valuable labels are solved first, and when the time is up the model is published without
    the others: its manifest, card and report say so. The same run_dir and more time give the rest.
    Raises NotFound, Corrupt, ParameterError, InputError, Conflict (`out` exists, or `run_dir` is another run's),
    Refused (it can't fit in memory or on disk, or no label was done in time), Unavailable (no Ray, workers lost), Stopped.
    """
    if Path(out).exists():  # before the work, not after it
        raise Conflict(
            f"{Path(out).name} exists already; choose another path for the model, or remove it first"
        )
    run = _Run(spec, Path(run_dir), progress or (lambda _: None), stop or StopFlag(), job)
    run.notes = dict(notes or {})
    run.prepare(Path(out))
    run.solve()
    return run.publish(Path(out))


class _Run:
    """One training under way: what its steps share."""

    def __init__(
        self,
        spec: TrainSpec,
        run_dir: Path,
        progress: Callable[[Progress], None],
        stop: StopFlag,
        job: str,
    ) -> None:
        self.spec = spec
        self.run_dir = run_dir
        self.progress = progress
        self.stop = stop
        self.started = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.tell("LOADING", 0, 0)
        self.dataset = Dataset.open(spec.dataset)
        self.solver = make_solver(spec.solver, spec.params)
        self.seed: int | None = getattr(
            self.solver, "seed", None
        )  # solvers that draw nothing have none
        train = self.dataset.train
        if train.n_rows == 0 or train.Y.nnz == 0:
            raise InputError(
                "the training part has no row with a label; check the label column of the source",
                code="NO_POSITIVES",
            )
        self.way = way_of(Setting(spec, self.dataset, self.solver, run_dir, job))
        self.vitals = Vitals(self.way.workers, self.dataset.train.n_rows)
        self.parts = Parts(
            run_dir,
            self._fingerprint(),
            n_labels=self.dataset.n_labels,
            n_features=self.dataset.n_features,
        )
        self.by_frequency: dict[str, list[dict[str, Any]]] = {}
        self.notes: dict[str, Any] = {}
        self.calibration: tuple[Calibration, dict[str, Any]] | None = None

    def prepare(self, out: Path) -> None:
        """Foresee what the training takes; refuse it when it can't fit, or can't be calibrated."""
        if self.spec.calibrate:
            held_out(self.dataset)
        found = self.way.foreseen(self.parts.missing)
        check(found, limits_of(self.spec), self.run_dir, out)
        self.watch = Watch(found, self.way.shares(), self.parts, self.run_dir, out)

    def solve(self) -> None:
        """Solve the labels that no part holds."""
        self.seconds["LOADING"] = time.monotonic() - self.started
        began = time.monotonic()
        self.way.solve(
            Desk(
                self.parts,
                self.stop,
                self._tick,
                self._seconds_left,
                self.watch.follow,
                self.vitals,
            )
        )
        self.seconds["TRAINING"] = time.monotonic() - began
        check_some(self.dataset.n_labels, self.parts.missing, self.spec.max_seconds)

    def publish(self, out: Path) -> TrainResult:
        """Merge the parts, measure the model on the held-out part, and publish its directory; no step holds all weights."""
        budget = merge_budget(self.spec, int(self.parts.lengths.sum()))
        with Staging(
            out, budget, tick=lambda: self._at("MERGING"), note=self.run_dir / "staged"
        ) as staging:
            self._at("MERGING")
            began = time.monotonic()
            allowed = {
                "allow_missing": self.spec.max_seconds is not None,
                "positives": self.dataset.label_counts,
            }
            block = self.parts.merge(
                staging.weights, budget=budget, tick=lambda: self._at("MERGING"), **allowed
            )
            index = staging.index(block.bias)
            self.seconds["MERGING"] = time.monotonic() - began
            measures = self._measure(index)
            if self.spec.calibrate:
                self._calibrate(index)
            self._at("PUBLISHING")
            return self._write(staging, block._replace(W=index.W), index.b, measures)

    def _write(
        self, staging: Staging, block: Block, b: Float32, measures: dict[str, float]
    ) -> TrainResult:
        """Everything of the model that is not its arrays, and the rename."""
        timeline = read_streams(self.run_dir)
        report = self._report(block, staging.path, balance(timeline, self.way.workers), measures)
        keep_history(report, staging.path)
        model = write_model(
            staging.target,
            staged=staging,
            W=block.W,
            b=b,
            label_names=self.dataset.label_names,
            feature_names=self.dataset.feature_names,
            text=self.dataset.text,
            solver=self.spec.solver,
            params=self.solver.as_dict(),
            dataset_hash=self.dataset.content_hash,
            seed=self.seed,
            measures=measures,
            report=report,
            classes=self.way.classes(block, timeline),
            timeline=plain(timeline) if timeline.num_rows else None,
            missing=len(self.parts.missing),
            link=self.way.link,
            calibration=self.calibration,
        )
        return TrainResult(model.path, model.sha256, model.measures, report)

    def tell(
        self,
        phase: str,
        done: int,
        total: int,
        rate: float = 0.0,
        eta: float | None = None,
        note: str = "",
        figures: Mapping[str, Any] = NONE,
    ) -> None:
        """Report progress. Raises Stopped when a stop was asked for: between phases, finished batches are all on disk."""
        if self.stop.is_set():
            raise Stopped(
                "stopped on request; finished batches are kept, the next run does the rest"
            )
        vitals = self.vitals.told() if phase == "TRAINING" else NONE
        self.progress(
            Progress(
                phase,
                done,
                total,
                time.monotonic() - self.started,
                rate,
                eta,
                note,
                figures,
                vitals,
            )
        )

    def _at(self, phase: str) -> None:
        """Report a phase in which all classes are solved, or all that there was time for."""
        self.watch.look()
        n_labels = self.dataset.n_labels
        self.tell(phase, n_labels - len(self.parts.missing), n_labels)

    def _tick(self, *told: Any, **more: Any) -> None:
        """Report how far the solving is; see `Tell`."""
        self.watch.look()
        self.tell("TRAINING", *told, **more)

    def _seconds_left(self) -> float | None:
        """What is left of the time the spec allows."""
        allowed = self.spec.max_seconds
        return None if allowed is None else max(0.0, allowed - (time.monotonic() - self.started))

    def _fingerprint(self) -> dict[str, Any]:
        """What makes two runs the same run."""
        solver = {
            "solver": self.spec.solver,
            "revision": self.solver.revision,
            "params": self.solver.as_dict(),
        }
        return {**solver, "dataset": self.dataset.content_hash, "format": 1, **self.way.settled()}

    def _measure(self, index: SearchIndex) -> dict[str, float]:
        """Measures on the held-out part; empty without one."""
        test = self.dataset.test
        if test is None or test.n_rows == 0:
            return {}
        self._at("EVALUATING")
        began = time.monotonic()
        top = index.query(test.X, max(self.spec.ks), threads=cores()).top
        n_train = self.dataset.train.n_rows
        self.by_frequency = by_frequency(top, test.Y, self.dataset.label_counts, self.spec.ks)
        measures: dict[str, float] = evaluate(
            top, test.Y, ks=self.spec.ks, label_counts=self.dataset.label_counts, n_train=n_train
        )
        self.seconds["EVALUATING"] = time.monotonic() - began
        return measures

    def _calibrate(self, index: SearchIndex) -> None:
        """Probabilities, fitted on the held-out part; with too few right answers the model goes without, and its report says so."""
        self._at("CALIBRATING")
        began, test = time.monotonic(), held_out(self.dataset)

        def query(X: CSR, k: int) -> TopK:
            return index.query(X, k, threads=cores()).top

        how: dict[str, Any] = {"seed": self.seed or 0, "ks": self.spec.ks}
        try:
            curves, facts = calibrated(
                query, test.X, test.Y, self.dataset.label_counts, self.dataset.train.X, **how
            )
            self.calibration = (
                curves,
                {**facts, "dataset_hash": self.dataset.content_hash, "part": "test"},
            )
        except InputError as error:
            self.notes["not_calibrated"] = error.message
        self.seconds["CALIBRATING"] = time.monotonic() - began

    def _report(
        self, block: Block, staged: Path, spread: dict[str, Any], measures: dict[str, float]
    ) -> dict[str, Any]:
        """Figures people ask for after a training; JSON. spread: how the work was spread over workers."""
        test = self.dataset.test
        happened = {
            "weights": block.W.nnz,
            "model": sum(path.stat().st_size for path in staged.rglob("*.arrow")),
            "core_seconds": spread["core_seconds"],
            "seconds": round(self.seconds["TRAINING"] + self.seconds["MERGING"], 3),
        }
        return {
            "data": {
                "name": self.dataset.name,
                "rows": self.dataset.train.n_rows,
                "held_out": test.n_rows if test else 0,
            },
            "pool": self.spec.pool,
            "workers": self.way.workers,
            "seconds": {phase: round(seconds, 3) for phase, seconds in self.seconds.items()},
            **self.way.figures(block, measures),
            "damaged_parts": self.parts.damaged,
            **spread,
            "preflight": self.watch.report(happened),
            "by_frequency": self.by_frequency,
            **partial(self.dataset.label_counts, self.parts.missing, self.spec.max_seconds),
            **self.notes,
        }
