"""predict_bulk(spec): from a file of rows to a published directory of answers, resumable at any point."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Float64, frozen
from xcray.batch.chunk_task import PHASES, BulkWork, warm
from xcray.batch.lines import plan_lines
from xcray.batch.output import OutputParts
from xcray.batch.parquet import plan_parquet
from xcray.batch.plan import Plan
from xcray.batch.row_schema import TEXT
from xcray.batch.spec import BulkSpec
from xcray.errors import Conflict, InputError, Stopped, Unavailable, lacking_ray
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.schedule.label_scheduler import Scatter
from xcray.system.cores import cores
from xcray.telemetry.progress import ANSWERED, NONE, Progress
from xcray.workers.driver import drive
from xcray.workers.local_pool import SerialPool, ThreadPool
from xcray.workers.pool import Pool, Result, StopFlag
from xcray.workers.run_metrics import Vitals
from xcray.workers.timeline import Span, Timeline, balance, read_streams

FORMAT: Final = 1  # raised when the bytes of parts change, so that no output mixes two
SECONDS_A_ROW: Final = 1e-4  # a first guess
UNPACKED: Final = "input.unpacked"


class BulkResult(NamedTuple):
    """Where the answers are, and their manifest: rows, parts, checksums, and how it went."""

    path: Path
    manifest: dict[str, Any]


def predict_bulk(
    spec: BulkSpec,
    *,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None] | None = None,
    stop: StopFlag | None = None,
    job: str = "local",
    check: Callable[[], None] = lambda: None,
) -> BulkResult:
    """Answer every row of `spec.input` and publish the directory `out`: part-00000.parquet, ... in the order of the input.

    run_dir: keeps finished parts; call again with the same one to do only what is missing. progress: called with a Progress now
    and then. stop: set it, and Stopped is raised soon. job: names Ray actors. check: see `OutputParts.publish`.
    The bytes of the parts do not depend on pool, workers, kills and resumes.
    Raises NotFound, Corrupt, ParameterError; DataErrors for rows that can't be read (unless they are skipped), DataError for
    files; NotCalibrated; Conflict (`out` exists, or `run_dir` is another run's); Unavailable (no Ray, workers lost); Stopped.
    """
    if Path(out).exists():  # before the work, not after it
        raise Conflict(
            f"{Path(out).name} exists already; choose another output, or remove it first"
        )
    run = _Run(spec, Path(run_dir), progress or (lambda _: None), stop or StopFlag(), job)
    run.answer()
    return run.publish(Path(out), check)


class _Run:
    """One batch prediction under way: what its steps share."""

    def __init__(
        self,
        spec: BulkSpec,
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
        self.started = time.monotonic()
        self.seconds = dict[str, float]()
        self.vitals = Vitals(0, 0)  # nobody works yet
        self.tell("LOADING", 0, 0)
        self.model = Model.open(spec.model)
        self.predictor = Predictor(self.model)
        if spec.probabilities:
            self.predictor.require_probabilities()
        run_dir.mkdir(parents=True, exist_ok=True)
        self.plan = self._plan()
        if self.plan.form.kind == TEXT and self.model.text is None:
            mend = f"give rows of {self.model.n_features} features, or a model trained on text"
            raise InputError(
                f"this model was trained on feature rows and has no text pipeline: {mend}",
                code="NO_TEXT",
            )
        self.work = BulkWork(spec, self.plan, str(Path(spec.model).resolve()), self.model.sha256)
        self.local = self.work.local(self.predictor, self.stop)
        warm(self.local, spec)
        self.fingerprint = self._fingerprint()
        self.parts = OutputParts(run_dir, self.fingerprint, self.plan)
        self.kept_rows = self.parts.rows_read
        self.phases: Float64 = np.zeros(len(PHASES))
        self.seconds["LOADING"] = time.monotonic() - self.started

    def answer(self) -> None:
        """Answer the chunks that no part holds."""
        began, missing = time.monotonic(), frozen(self.parts.missing, np.int32)
        self.workers = (
            1
            if self.spec.pool == "serial"
            else max(1, min(self.spec.workers or cores(), len(missing)))
        )
        self.vitals = Vitals(self.workers, 0)
        self.tell("PREDICTING", self.kept_rows, self.plan.n_rows)
        if len(missing):
            rows = np.array(
                [max(1, self.plan.chunks[i].n_rows) for i in missing.tolist()], np.float64
            )
            order = -missing.astype(
                np.float64
            )  # in the order of the file: disks read ahead, and bad rows are met early
            schedule = Scatter(missing, rows, (SECONDS_A_ROW,), values=order, workers=self.workers)
            pool = self._pool()
            self.vitals.follow(pool.muster)
            with Timeline(self.run_dir, lambda: pool.nodes) as timeline:

                def record(span: Span) -> None:
                    timeline.add(span)
                    self.vitals.span(span)

                drive(
                    schedule,
                    pool,
                    commit=self._commit,
                    stop=self.stop,
                    tick=lambda: self._tick(began),
                    record=record,
                )
            if not self.spec.workers:
                self.workers = pool.muster().most or self.workers  # as many as came
        self.seconds["PREDICTING"] = time.monotonic() - began

    def publish(self, out: Path, check: Callable[[], None]) -> BulkResult:
        """Publish the parts; what was unpacked goes."""
        self.tell("PUBLISHING", self.plan.n_rows, self.plan.n_rows)

        def last() -> None:
            self.plan.check_unchanged()
            check()

        manifest = self.parts.publish(out, self._about(), last)
        (self.run_dir / UNPACKED).unlink(missing_ok=True)
        return BulkResult(out, manifest)

    def tell(
        self, phase: str, done: int, total: int, rate: float = 0.0, eta: float | None = None
    ) -> None:
        """Report progress. Raises Stopped when a stop was asked for."""
        if self.stop.is_set():
            raise Stopped("stopped on request; finished parts are kept, the next run does the rest")
        kept = getattr(self, "kept_rows", 0)
        note = self.vitals.note(f"{kept} kept" if kept else "")
        vitals = self.vitals.told() if phase == "PREDICTING" else NONE
        self.progress(
            Progress(
                phase, done, total, time.monotonic() - self.started, rate, eta, note, vitals=vitals
            )
        )

    def _plan(self) -> Plan:
        """Cut the input into chunks."""
        reads_text = self.model.text is not None
        if self.spec.format == "parquet":
            return plan_parquet(self.spec, reads_text)
        aside = self.run_dir / UNPACKED
        return plan_lines(
            self.spec, reads_text, self.model.n_features, aside, lambda: self.tell("LOADING", 0, 0)
        )

    def _fingerprint(self) -> dict[str, Any]:
        """What makes two runs the same run."""
        calibration = {
            name: f["sha256"]
            for name, f in self.model.manifest["files"].items()
            if name.startswith("calibration")
        }
        asked = {
            **self.spec.question(),
            **({"calibration": calibration} if self.spec.probabilities else {}),
        }
        return {
            **asked,
            "model": self.model.sha256,
            "files": [file.sha256 for file in self.plan.files],
            "work": FORMAT,
        }

    def _pool(self) -> Pool:
        """The pool the spec asks for."""
        if self.spec.pool == "ray":
            return ray_pool(self.spec, self.work, self.workers, self.job)
        return (
            SerialPool(self.work, self.local)
            if self.spec.pool == "serial"
            else ThreadPool(self.work, self.local, self.workers)
        )

    def _commit(self, result: Result) -> None:
        """Make the parts of a task durable."""
        for part in result.block:
            self.parts.commit(part)
            self.phases += part.seconds

    def _tick(self, began: float) -> None:
        """Progress: rate in rows, time left by the rows that are left."""
        read, total, elapsed = self.parts.rows_read, self.plan.n_rows, time.monotonic() - began
        rate = (read - self.kept_rows) / elapsed if elapsed > 0.0 else 0.0
        self.vitals.reach(ANSWERED, read - self.kept_rows)
        self.tell("PREDICTING", read, total, rate, (total - read) / rate if rate > 0.0 else None)

    def _about(self) -> dict[str, Any]:
        """What the manifest says of model, input, question, and how it went."""
        rows, seconds = self.plan.n_rows - self.kept_rows, self.seconds["PREDICTING"]
        report = {
            "pool": self.spec.pool,
            "workers": self.workers,
            "seconds": {phase: round(took, 3) for phase, took in self.seconds.items()},
            "cpu_seconds": {
                name: round(took, 3)
                for name, took in zip(PHASES, self.phases.tolist(), strict=True)
            },
            "rows_per_second": round(rows / seconds, 1) if rows and seconds > 0.0 else None,
            "rows_kept": self.kept_rows,
            "damaged_parts": self.parts.damaged,
            **balance(read_streams(self.run_dir), self.workers),
        }
        model = {"name": Path(self.spec.model).name, "sha256": self.model.sha256}
        return {
            "model": model,
            "input": self.plan.described(),
            "asked": self.spec.question(),
            "report": report,
        }


def ray_pool(spec: BulkSpec, work: BulkWork, workers: int, job: str) -> Pool:
    """A pool of Ray actors, on the cluster the spec names or on a local Ray of its own."""
    try:
        from xcray.workers.ray.pool import MOST, RayPool, session, thrift_on
    except ModuleNotFoundError as error:
        raise lacking_ray(error) from None
    thrift = thrift_on(spec.ray_address)
    most = workers if spec.workers or thrift is None else MOST
    return RayPool(work, most, session(spec.ray_address, workers), job, _unseen, thrift=thrift)


def _unseen() -> tuple[Any, ...]:
    """A node does not see the files: a model of gigabytes is not sent about, and neither is the input."""
    raise Unavailable(
        "a Ray worker does not see the model directory or the input: put both on a file system that all nodes share",
        code="UNSEEN",
    )
