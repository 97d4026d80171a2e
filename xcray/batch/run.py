"""predict_batch(spec): from a file of rows to a published directory of answers, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import frozen
from xcray.batch.chunk_task import ChunkTask, warm_kernels
from xcray.batch.lines import plan_lines
from xcray.batch.output import OutputParts
from xcray.batch.parquet import plan_parquet
from xcray.batch.plan import BatchPlan
from xcray.batch.row_schema import TEXT, TextColumns
from xcray.batch.spec import BatchPredictSpec
from xcray.data.feature_space import reads_zero_based
from xcray.errors import InputError, Stopped, Unavailable, missing_ray
from xcray.model.model import Model
from xcray.parameters import require_type
from xcray.predict import Predictor
from xcray.predict.thresholds import require_label_thresholds
from xcray.schedule.label_scheduler import LabelScheduler
from xcray.storage.run_directory import BATCH_ROWS
from xcray.system.cores import available_cores
from xcray.telemetry.progress import EMPTY, ROWS_ANSWERED, Progress
from xcray.training.run_lock import hold_run_directory
from xcray.workers.driver import run_schedule
from xcray.workers.local_group import local_pool
from xcray.workers.observer import RunObserver, RunProgress
from xcray.workers.pool import Pool, Result, StopFlag
from xcray.workers.run_metrics import RunMetrics
from xcray.workers.timeline import Span, Timeline, balance, read_streams

# Increased when the bytes of parts change, so that no output mixes two formats.
PART_FORMAT: Final = 1
SECONDS_PER_ROW: Final = 1e-4  # first guess


class BatchPredictResult(NamedTuple):
    """Path of the answers, and their manifest: rows, parts, checksums, and a report."""

    path: Path
    manifest: dict[str, Any]


def predict_batch(
    spec: BatchPredictSpec,
    *,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None] | None = None,
    stop: StopFlag | None = None,
    job: str = "local",
    check: Callable[[], None] = lambda: None,
    exclusive: bool = True,
) -> BatchPredictResult:
    """Predict every row of `spec.input` and publish the directory `out`.

    The files part-00000.parquet, ... follow the order of the input. run_dir: stores finished parts.
    Call again with the same directory to resume. progress: called regularly with a Progress. stop:
    when set, Stopped is raised soon. job: prefix of the names of Ray actors. check: see
    `OutputParts.publish`. exclusive: see `hold_run_directory`. The bytes of the parts do not depend
    on pool, workers, kills and resumes. Raises NotFound, Corrupt, ParameterError; DataErrors for
    invalid rows (unless they are skipped), DataError for files; NotCalibrated; Conflict (`out`
    exists, `run_dir` belongs to another run or is in use); Unavailable (no Ray, workers lost);
    Stopped.
    """
    require_type("spec", spec, BatchPredictSpec, "a BatchPredictSpec of model and input")
    stop = stop or StopFlag()
    with hold_run_directory(Path(run_dir), Path(out), stop, exclusive):
        run = _BatchRun(spec, Path(run_dir), progress or (lambda _: None), stop, job)
        run.predict()
        return run.publish(Path(out), check)


class _BatchRun:
    """State of one batch prediction."""

    def __init__(
        self,
        spec: BatchPredictSpec,
        run_dir: Path,
        progress: Callable[[Progress], None],
        stop: StopFlag,
        job: str,
    ) -> None:
        self.spec = spec
        self.run_dir = run_dir
        self.progress = progress
        self.stop = stop
        self.job = job
        self.start_time = time.monotonic()
        self.phase_seconds = dict[str, float]()
        self.metrics = RunMetrics(0, 0)  # no workers yet
        self.report_progress("LOADING", 0, 0)
        self.model = Model.open(spec.model)
        self.spec = spec = _read_like(spec, self.model)
        self.predictor = Predictor(self.model)
        if spec.needs_probabilities:
            self.predictor.require_probabilities()
        if spec.label_thresholds:
            require_label_thresholds(self.model.manifest)
        run_dir.mkdir(parents=True, exist_ok=True)
        self.plan = self._make_plan()
        if self.plan.schema.kind == TEXT and self.model.text is None:
            fix = f"give rows of {self.model.n_features} features, or a model trained on text"
            raise InputError(
                f"this model was trained on feature rows and has no text pipeline: {fix}",
                code="NO_TEXT",
            )
        self.task = ChunkTask(spec, self.plan, str(Path(spec.model).resolve()), self.model.sha256)
        self.state = self.task.make_state(self.predictor, self.stop)
        warm_kernels(self.state, spec)
        self.fingerprint = self._fingerprint()
        self.parts = OutputParts(run_dir, self.fingerprint, self.plan)
        self.kept_rows = self.parts.rows_read
        self.phase_seconds["LOADING"] = time.monotonic() - self.start_time

    def predict(self) -> None:
        """Predict the chunks that no part holds."""
        began, missing = time.monotonic(), frozen(self.parts.missing, np.int32)
        self.workers = (
            1
            if self.spec.pool == "serial"
            else max(1, min(self.spec.workers or available_cores(), len(missing)))
        )
        self.metrics = RunMetrics(self.workers, 0)
        self.report_progress("PREDICTING", self.kept_rows, self.plan.n_rows)
        if len(missing):
            rows = np.array(
                [max(1, self.plan.chunks[i].n_rows) for i in missing.tolist()], np.float64
            )
            # In the order of the file: disks read ahead, and invalid rows are found early.
            order = -missing.astype(np.float64)
            schedule = LabelScheduler(
                missing, rows, (SECONDS_PER_ROW,), values=order, workers=self.workers
            )
            pool = self._make_pool()
            self.metrics.set_worker_source(pool.status)
            with Timeline(self.run_dir, lambda: pool.nodes) as timeline:
                observer = _ChunkObserver(self, timeline, began)
                run_schedule(schedule, pool, observer, stop=self.stop)
            if not self.spec.workers:
                self.workers = (
                    pool.status().peak or self.workers
                )  # the workers that actually joined
        self.phase_seconds["PREDICTING"] = time.monotonic() - began

    def publish(self, out: Path, check: Callable[[], None]) -> BatchPredictResult:
        """Publish the parts, and remove the copy of the rows."""
        self.report_progress("PUBLISHING", self.plan.n_rows, self.plan.n_rows)

        def last() -> None:
            self.plan.check_unchanged()
            check()

        manifest = self.parts.publish(out, self._manifest_entries(), last)
        for path in self.run_dir.glob(f"*{BATCH_ROWS}*"):  # also what killed attempts left
            path.unlink(missing_ok=True)
        return BatchPredictResult(out, manifest)

    def report_progress(
        self, phase: str, done: int, total: int, rate: float = 0.0, eta: float | None = None
    ) -> None:
        """Report progress. Raises Stopped if a stop was requested."""
        if self.stop.is_set():
            raise Stopped("stopped on request; finished parts are kept, the next run does the rest")
        n_kept = getattr(self, "kept_rows", 0)
        note = self.metrics.progress_note(f"{n_kept} kept" if n_kept else "")
        metrics = self.metrics.snapshot() if phase == "PREDICTING" else EMPTY
        self.progress(
            Progress(
                phase,
                done,
                total,
                time.monotonic() - self.start_time,
                rate,
                eta,
                note,
                metrics=metrics,
            )
        )

    def _make_plan(self) -> BatchPlan:
        """Cut the input into chunks."""
        text_fields = None
        if self.model.text is not None:
            values = tuple(self.model.reading.get("value_fields", ()))
            text_fields = TextColumns(self.model.text_fields, values)
        if self.spec.format == "parquet":
            return plan_parquet(self.spec, text_fields)
        return plan_lines(
            self.spec,
            text_fields,
            self.model.n_features,
            self.run_dir / BATCH_ROWS,
            lambda: self.report_progress("LOADING", 0, 0),
        )

    def _fingerprint(self) -> dict[str, Any]:
        """Return the data that identifies this run when it is resumed."""
        calibration = {
            name: f["sha256"]
            for name, f in self.model.manifest["files"].items()
            if name.startswith("calibration")
        }
        request = {
            **self.spec.request(),
            **({"calibration": calibration} if self.spec.probabilities else {}),
        }
        return {
            **request,
            "model": self.model.sha256,
            "files": [file.sha256 for file in self.plan.files],
            "work": PART_FORMAT,
        }

    def _make_pool(self) -> Pool:
        """Return the pool of the spec."""
        if self.spec.pool == "ray":
            return make_ray_pool(self.spec, self.task, self.workers, self.job)
        threads = None if self.spec.pool == "serial" else self.workers
        return local_pool(self.task, self.state, threads)

    def commit(self, result: Result) -> None:
        """Make the parts of a task durable."""
        for part in result.value:
            self.parts.commit(part)

    def report_rows(self, began: float) -> None:
        """Report the rate in rows, and the remaining time."""
        read, total, elapsed = self.parts.rows_read, self.plan.n_rows, time.monotonic() - began
        rate = (read - self.kept_rows) / elapsed if elapsed > 0.0 else 0.0
        self.metrics.set_total(ROWS_ANSWERED, read - self.kept_rows)
        self.report_progress(
            "PREDICTING", read, total, rate, (total - read) / rate if rate > 0.0 else None
        )

    def _manifest_entries(self) -> dict[str, Any]:
        """Return the manifest entries of model, input, request, and report."""
        rows, seconds = self.plan.n_rows - self.kept_rows, self.phase_seconds["PREDICTING"]
        report = {
            "pool": self.spec.pool,
            "workers": self.workers,
            "seconds": {phase: round(took, 3) for phase, took in self.phase_seconds.items()},
            "rows_per_second": round(rows / seconds, 1) if rows and seconds > 0.0 else None,
            "rows_kept": self.kept_rows,
            "damaged_parts": self.parts.damaged,
            **balance(read_streams(self.run_dir), self.workers),
        }
        model = {"name": Path(self.spec.model).name, "sha256": self.model.sha256}
        return {
            "model": model,
            "input": self.plan.describe_files(),
            "asked": self.spec.request(),
            "report": report,
        }


def _read_like(spec: BatchPredictSpec, model: Model) -> BatchPredictSpec:
    """Return the spec with the options of the model's data that it leaves open."""
    if spec.format == "svmlight":
        return replace(spec, zero_based=reads_zero_based(spec.zero_based, model.first_index))
    if spec.format == "csv" and spec.delimiter is None:
        return replace(spec, delimiter=model.reading.get("delimiter"))
    return spec


class _ChunkObserver(RunObserver[Result]):
    """Observes the chunks of a run that began to predict at `began`, on a monotonic clock."""

    def __init__(self, run: _BatchRun, timeline: Timeline, began: float) -> None:
        self._run = run
        self._timeline = timeline
        self._began = began

    def record(self, span: Span) -> None:
        """Add a span to the timeline and to the metrics."""
        self._timeline.add(span)
        self._run.metrics.add_span(span)

    def commit(self, result: Result) -> None:
        """Make the parts of a task durable."""
        self._run.commit(result)

    def report(self, progress: RunProgress) -> None:
        """Report the rows of the finished chunks."""
        self._run.report_rows(self._began)


def make_ray_pool(spec: BatchPredictSpec, task: ChunkTask, workers: int, job: str) -> Pool:
    """Return a pool of Ray actors, on the spec's cluster or on a local Ray."""
    try:
        from xcray.workers.ray.pool import (
            MAX_CLUSTER_WORKERS,
            RayPool,
            scaling_policy_for,
            training_session,
        )
    except ModuleNotFoundError as error:
        raise missing_ray(error) from None
    policy = scaling_policy_for(spec.ray_address)
    max_workers = workers if spec.workers or policy is None else MAX_CLUSTER_WORKERS
    return RayPool(
        task,
        max_workers,
        training_session(spec.ray_address, workers),
        job,
        _raise_not_shared,
        policy=policy,
    )


def _raise_not_shared() -> tuple[Any, ...]:
    """Raise Unavailable: a node cannot see the files.

    Model, input and the rows in the run directory can be gigabytes, so they are not sent to nodes.
    """
    raise Unavailable(
        "a Ray worker cannot see the model directory, the input or the run directory: put all "
        "three on a file system that all nodes share",
        code="UNSEEN",
    )
