"""The process that runs one attempt of a job.

  python -m xcray.jobs.runner.main --home DIR --job ID --attempt N

It leaves the job SUCCEEDED, STOPPED or FAILED in the store, or PENDING if it released the job
(SIGTERM, something unavailable, a full disk). It writes nothing if a newer attempt owns the job.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import faulthandler
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from xcray.batch.output import find_manifest
from xcray.errors import Fenced, Stopped, Unavailable, XcrayError, is_disk_full
from xcray.jobs.home import STORE_VARIABLE, Home
from xcray.jobs.job import PREDICT, TRAIN, Job
from xcray.jobs.runner import batch_job
from xcray.jobs.runner.monitor import AttemptMonitor, LogLimit, MonitorOptions
from xcray.jobs.runner.promotion import promote
from xcray.jobs.runner.publish import Outcome, Publisher
from xcray.jobs.states import FAILED, SUCCEEDED
from xcray.jobs.store.attempts import DISK_FULL, MAX_LAUNCH_ATTEMPTS
from xcray.jobs.store.job_store import JobStore
from xcray.kernels.compilation import counted_compilation
from xcray.model.registry import Registry
from xcray.system.processes import lower_priority
from xcray.telemetry import tracing
from xcray.telemetry.logging import LogContext, configure_runner_logging
from xcray.training import TrainResult, TrainSpec, train
from xcray.training.edit.apply import EditOptions
from xcray.training.edit.changes import make_version
from xcray.workers.pool import StopFlag

LOG: Final = logging.getLogger(__name__)
FENCED: Final = "FENCED"  # the result of `run_attempt` if another attempt owns the job
# Keys that the service adds to a spec for its own use.
SERVICE_KEYS: Final = (
    "dataset_id",
    "shown",
    tracing.TRACEPARENT,
)
PUBLISH_FOLDER: Final = "publish"
OUT_OF_MEMORY_MESSAGE: Final = (
    "the job needs more memory than is available: use fewer workers or less data"
)
# Largest entry of a report, in characters, that a job's record holds.
MAX_ENTRY_CHARS: Final = 4000

TrainFunction = Callable[..., TrainResult]


def run_attempt(
    store: JobStore,
    home: Home,
    job_id: str,
    attempt: int,
    *,
    train_function: TrainFunction = train,
    ray_address: str | None = None,
    stop_flag: StopFlag | None = None,
    options: MonitorOptions | None = None,
) -> str:
    """Run one attempt to its end and return the job's status, or FENCED.

    train_function: stands in for `xcray.training.train`. ray_address: the cluster for specs with
    pool "ray" that do not set one. stop_flag: set it from outside (on SIGTERM) to release the job.
    options: of the monitor.
    """
    stop_flag, phases = stop_flag or StopFlag(), tracing.PhaseSpans()
    options = options or MonitorOptions()
    on_phase = options.on_phase

    def enter_phase(phase: str) -> None:
        on_phase(phase)
        phases.enter(phase)

    with counted_compilation() as compilation:
        options = dataclasses.replace(options, on_phase=enter_phase, activity=compilation.note)
        monitor = AttemptMonitor(store, job_id, attempt, stop_flag, options)
        try:
            monitor.start()
            job = store.attempts.get_owned(job_id, attempt)
            with _attempt_span(store, job), contextlib.closing(phases):
                return _Attempt(store, home, job, monitor, ray_address).run(train_function)
        except Fenced as error:
            LOG.warning("%s", error.message)
            return FENCED
        finally:
            monitor.stop()


def _attempt_span(store: JobStore, job: Job) -> contextlib.AbstractContextManager[Any]:
    """Open the span of an attempt in the trace of the request that submitted the job.

    The time in the queue is recorded as a span, too.
    """
    parent = job.spec.get(tracing.TRACEPARENT)
    if tracing.is_enabled():
        queued, claimed = store.attempts.queue_times(job.id)
        tracing.record_span("queue", claimed - queued, parent=parent, until=claimed, job_id=job.id)
    return tracing.span(
        "attempt", parent=parent, job_id=job.id, attempt=job.attempt, kind_of_job=job.kind
    )


class _Attempt:
    """One attempt: the state that its steps share."""

    def __init__(
        self,
        store: JobStore,
        home: Home,
        job: Job,
        monitor: AttemptMonitor,
        ray_address: str | None,
    ) -> None:
        self.store = store
        self.home = home
        self.job = job
        self.monitor = monitor
        self.ray_address = ray_address
        self.folder = home.run(job.id)

    def run(self, training: TrainFunction) -> str:
        """Run the work, publish, finish the job, and return its status. Raises Fenced."""
        work: dict[str, Callable[[], dict[str, Any]]] = {
            TRAIN: lambda: self._train_and_publish(training),
            PREDICT: self._predict_and_publish,
        }
        if self.job.kind not in work:
            return self._fail(
                "KIND",
                f"this xcray can't run jobs of kind {self.job.kind[:20]!r}: use a newer one",
            )
        try:
            result = work[self.job.kind]()
        except Fenced:
            raise
        except Stopped:
            self.monitor.stop()
            return self.monitor.record_stop()
        except Unavailable as error:
            return self._retry_later(error)
        except XcrayError as error:
            if error.code == DISK_FULL:
                return self._wait_for_space()
            return self._fail(error.code, error.message)
        except MemoryError:
            LOG.exception("out of memory")
            return self._fail("OUT_OF_MEMORY", OUT_OF_MEMORY_MESSAGE)
        except OSError as error:
            return self._fail_os_error(error)
        except Exception:
            LOG.exception("the job failed")
            return self._fail("INTERNAL", "internal error in xcray; see the log of the job")
        self._finish(SUCCEEDED, result=result)
        # needed for publishing only
        shutil.rmtree(self.folder / PUBLISH_FOLDER, ignore_errors=True)
        if self.job.kind == PREDICT:
            batch_job.clean_up(self.folder)
        return SUCCEEDED

    def _train_and_publish(self, training: TrainFunction) -> dict[str, Any]:
        """Train, publish the model, and return the job's result."""
        values = self._work_spec()
        solve = self._update if "update" in values else partial(self._train, training)
        publisher = Publisher(
            self.folder / PUBLISH_FOLDER,
            self._registry(),
            self.job.id,
            self.job.spec.get("name", self.job.name),
        )
        published = publisher.find_published()
        if published is not None:
            LOG.info("an earlier attempt has published version %d", published["version"])
            return promote(self._registry(), values, published)
        staged = publisher.staging_path(self.job.attempt)
        trained = solve(values, staged)
        outcome = Outcome(trained.sha256, trained.measures, shorten_report(trained.report))
        result = publisher.publish(
            trained.model_path, outcome, self.job.attempt, self.monitor.commit
        )
        # Logged before the job ends, so that its log is complete then.
        LOG.info("published %s version %d", result["model"], result["version"])
        return promote(self._registry(), values, result)

    def _train(self, training: TrainFunction, values: dict[str, Any], out: Path) -> TrainResult:
        """Train, and return the result."""
        return training(
            TrainSpec.from_dict(values),
            run_dir=self.folder,
            out=out,
            progress=self.monitor.report_progress,
            stop=self.monitor.stop_flag,
            job=self.job.id,
            exclusive=False,
        )

    def _update(self, values: dict[str, Any], out: Path) -> TrainResult:
        """Make the next version of a model by a change, and return the result."""
        options = EditOptions(
            pool=values["pool"],
            workers=values["workers"],
            run_dir=self.folder,
            progress=self.monitor.report_progress,
            stop=self.monitor.stop_flag,
        )
        return make_version(values, out, options)

    def _predict_and_publish(self) -> dict[str, Any]:
        """Predict, publish the results, and return the job's result."""
        manifest = find_manifest(self.folder / batch_job.OUTPUT_FOLDER)
        if manifest is not None:
            LOG.info("an earlier attempt has published the results")
        else:
            manifest = batch_job.predict_and_publish(
                self.job, self._work_spec(), self.folder, self.monitor
            )
        LOG.info("predicted %d rows", manifest["answered"])
        return batch_job.job_result(self.job, manifest)

    def _registry(self) -> Registry:
        """Return the model registry of the job's tenant."""
        return Registry(self.home.models_of(self.job.tenant))

    def _work_spec(self) -> dict[str, Any]:
        """Return the spec of the work without the service's own keys."""
        values = {name: value for name, value in self.job.spec.items() if name not in SERVICE_KEYS}
        if values.get("pool") == "ray" and self.ray_address and not values.get("ray_address"):
            values["ray_address"] = self.ray_address
        return values

    def _finish(self, status: str, **more: Any) -> None:
        """End the job after the monitor has written all its reports."""
        self.monitor.stop()
        self.store.attempts.finish(self.job.id, self.job.attempt, status, **more)

    def _fail(self, reason: str, message: str) -> str:
        """End the job as FAILED."""
        LOG.error("%s: %s", reason, message)
        self._finish(FAILED, reason=reason, message=message)
        return FAILED

    def _retry_later(self, error: Unavailable) -> str:
        """Release the job for a retry after a pause. It FAILED after the last attempt."""
        LOG.warning("%s: %s", error.code, error.message)
        self.monitor.stop()
        return self.store.attempts.retry_later(
            self.job.id, self.job.attempt, reason=error.code, message=error.message
        ).status

    def _wait_for_space(self) -> str:
        """Release the job for a retry after a pause: the full disk is not its fault.

        It FAILED after MAX_LAUNCH_ATTEMPTS, which takes more than an hour.
        """
        LOG.warning("%s: the attempt ends", DISK_FULL)
        self.monitor.stop()
        return self.store.attempts.retry_later(
            self.job.id,
            self.job.attempt,
            reason=DISK_FULL,
            message="the disk is full: make room; the job then continues from its finished work",
            max_attempts=MAX_LAUNCH_ATTEMPTS,
        ).status

    def _fail_os_error(self, error: OSError) -> str:
        """End the attempt with a reason that depends on the system's error number."""
        LOG.exception("operating system error")
        if is_disk_full(error):
            return self._wait_for_space()
        if error.errno == errno.ENOMEM:
            return self._fail("OUT_OF_MEMORY", OUT_OF_MEMORY_MESSAGE)
        return self._fail(
            "INTERNAL", "the operating system reported an error; see the log of the job"
        )


def shorten_report(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without its long entries, which the model's directory keeps."""
    return {name: value for name, value in report.items() if len(repr(value)) <= MAX_ENTRY_CHARS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process. Exit status: 0 done or released, 1 FAILED, 3 owned by another attempt."""
    parser = argparse.ArgumentParser(
        prog="xcray.jobs.runner.main", description="run one attempt of a job"
    )
    parser.add_argument("--home", required=True)
    parser.add_argument("--store", default=os.environ.get(STORE_VARIABLE))
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--log", type=Path, help="also write the log to this file")
    parser.add_argument("--ray-address")
    parser.add_argument(
        "--wanted", type=Path, help="file to touch while running, to keep the local Ray alive"
    )
    parser.add_argument("--nice", type=int, default=0, help="niceness to add, 0 to 19")
    parser.add_argument(
        "--lease",
        type=float,
        default=20.0,
        help="seconds without a heartbeat until the job counts as lost",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=3.0,
        help="seconds that the training has to stop before it is killed",
    )
    parser.add_argument("--log-bytes", type=float, help="size limit of the job's log")
    options = parser.parse_args(arguments)
    log_context = LogContext(options.job, options.attempt)
    configure_runner_logging(options.log, log_context)
    tracing.enable_tracing("xcray-runner")
    faulthandler.enable()  # log tracebacks of native crashes, too
    lower_priority(options.nice)
    home, flag = Home(options.home), StopFlag()
    signal.signal(signal.SIGTERM, lambda _number, _frame: flag.set())
    # Never upgrade: the program that launched this runner is using the store.
    store = JobStore(options.store or home.store_url, upgrade=False)
    log_limit = (
        LogLimit(home.log(options.job), int(options.log_bytes)) if options.log_bytes else None
    )
    monitor_options = MonitorOptions(
        lease_seconds=options.lease,
        stop_grace_seconds=options.patience,
        log_limit=log_limit,
        keep_alive_file=options.wanted,
        on_phase=log_context.set_phase,
    )
    try:
        status = run_attempt(
            store,
            home,
            options.job,
            options.attempt,
            ray_address=options.ray_address,
            stop_flag=flag,
            options=monitor_options,
        )
    except XcrayError as error:
        # The store is unavailable: the lease will expire, and another attempt follows.
        LOG.error("%s: %s", error.code, error.message)
        return 2
    finally:
        tracing.disable_tracing()
        store.close()
    LOG.info("end: %s", status)
    return {FAILED: 1, FENCED: 3}.get(status, 0)


if __name__ == "__main__":
    sys.exit(main())
