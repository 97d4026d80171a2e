"""The process that runs one attempt of a job: `python -m xcray.jobs.runner.main --home DIR --job ID --attempt N`.

It ends with SUCCEEDED, STOPPED or FAILED in the store; with PENDING when it gave the job back (SIGTERM, something unavailable);
or with nothing at all when a newer attempt owns the job.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from xcray.errors import Fenced, Stopped, Unavailable, XcrayError
from xcray.jobs.home import Home
from xcray.jobs.job import PREDICT, TRAIN, Job
from xcray.jobs.runner import batch_job as answering
from xcray.jobs.runner.monitor import Bound, Heart
from xcray.jobs.runner.publish import Outcome, PublishDesk
from xcray.jobs.states import FAILED, STOPPED, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.supervision.launch import STORE_VARIABLE
from xcray.model.registry import Registry
from xcray.system.processes import lower_priority
from xcray.telemetry import tracing
from xcray.telemetry.logging import Whereabouts, log_runner
from xcray.training import TrainResult, TrainSpec, train
from xcray.workers.pool import StopFlag

LOG: Final = logging.getLogger(__name__)
FENCED: Final = "FENCED"  # what `run_attempt` returns when the job is another attempt's
NOT_THE_SPECS: Final = (
    "dataset_id",
    "shown",
    tracing.HEADER,
)  # what the service notes in a spec for itself
PUBLISH: Final = "publish"
NO_MEMORY: Final = "the job needs more memory than there is: use fewer workers or less data"
LARGEST_FIGURE: Final = (
    4000  # characters of JSON that one entry of a report may take in a job's record
)

Train = Callable[..., TrainResult]


def run_attempt(
    store: JobStore,
    home: Home,
    job_id: str,
    attempt: int,
    *,
    training: Train = train,
    ray_address: str | None = None,
    flag: StopFlag | None = None,
    **heart_options: Any,
) -> str:
    """Run one attempt to its end; the job's status then, or FENCED.

    training: stands for `xcray.training.train`. ray_address: the cluster for specs with pool "ray" that name none. flag: set it from
    outside (SIGTERM) to give the job back. heart_options: see `Heart`.
    """
    flag, phases = flag or StopFlag(), tracing.Phases()
    where: Callable[[str], None] = heart_options.pop("phase", lambda _: None)

    def at(phase: str) -> None:
        where(phase)
        phases.at(phase)

    heart = Heart(store, job_id, attempt, flag, phase=at, **heart_options)
    try:
        heart.start()
        job = store.current(job_id, attempt)
        with _traced(store, job), contextlib.closing(phases):
            return _Attempt(store, home, job, heart, ray_address).run(training)
    except Fenced as error:
        LOG.warning("%s", error.message)
        return FENCED
    finally:
        heart.stop()


def _traced(store: JobStore, job: Job) -> contextlib.AbstractContextManager[Any]:
    """The span of an attempt, in the trace of the request that submitted the job; the wait before it is a span too."""
    parent = job.spec.get(tracing.HEADER)
    if tracing.is_on():
        queued, claimed = store.waited(job.id)
        tracing.happened("queue", claimed - queued, parent=parent, until=claimed, job_id=job.id)
    return tracing.span(
        "attempt", parent=parent, job_id=job.id, attempt=job.attempt, kind_of_job=job.kind
    )


class _Attempt:
    """One attempt: what its steps share."""

    def __init__(
        self, store: JobStore, home: Home, job: Job, heart: Heart, ray_address: str | None
    ) -> None:
        self.store = store
        self.home = home
        self.job = job
        self.heart = heart
        self.ray_address = ray_address
        self.folder = home.run(job.id)

    def run(self, training: Train) -> str:
        """Do the work, publish, finish; every end of it as a status. Raises Fenced."""
        work: dict[str, Callable[[], dict[str, Any]]] = {
            TRAIN: lambda: self._train_and_publish(training),
            PREDICT: self._predict_and_publish,
        }
        if self.job.kind not in work:
            return self._fail(
                "KIND",
                f"this xcray does not know jobs of kind {self.job.kind[:20]!r}: let a newer one run it",
            )
        try:
            result = work[self.job.kind]()
        except Fenced:
            raise
        except Stopped:
            return self._stopped()
        except Unavailable as error:
            return self._later(error)
        except XcrayError as error:
            return self._fail(error.code, error.message)
        except MemoryError:
            LOG.exception("out of memory")
            return self._fail("OUT_OF_MEMORY", NO_MEMORY)
        except OSError as error:
            return self._system_error(error)
        except Exception:
            LOG.exception("the job failed")
            return self._fail(
                "INTERNAL", "something in xcray went wrong; the log of the job says where"
            )
        self._finish(SUCCEEDED, result=result)
        shutil.rmtree(self.folder / PUBLISH, ignore_errors=True)  # what only publishing needed
        if self.job.kind == PREDICT:
            answering.clear(self.folder)
        return SUCCEEDED

    def _train_and_publish(self, training: Train) -> dict[str, Any]:
        """The job's result."""
        spec = TrainSpec.from_dict(self._spec())
        desk = PublishDesk(
            self.folder / PUBLISH,
            self._registry(),
            self.job.id,
            self.job.spec.get("name", self.job.name),
        )
        found = desk.found()
        if found is not None:
            LOG.info("an earlier attempt has published version %d", found["version"])
            return found
        staged = desk.staged(self.job.attempt)
        given = training(
            spec,
            run_dir=self.folder,
            out=staged,
            progress=self.heart.progress,
            stop=self.heart.flag,
            job=self.job.id,
        )
        outcome = Outcome(given.sha256, given.measures, summary(given.report))
        result = desk.publish(given.model_path, outcome, self.job.attempt, self.heart.commit)
        LOG.info(
            "published %s version %d", result["model"], result["version"]
        )  # before the job ends: then its log is whole
        return result

    def _predict_and_publish(self) -> dict[str, Any]:
        """The job's result: where the answers are, and what they are."""
        manifest = answering.found(self.folder)
        if manifest is not None:
            LOG.info("an earlier attempt has published the answers")
        else:
            manifest = answering.answer(self.job, self._spec(), self.folder, self.heart)
        LOG.info("answered %d rows", manifest["answered"])
        return answering.result_of(self.job, manifest)

    def _registry(self) -> Registry:
        """Where the models of the job's tenant are."""
        return Registry(self.home.models_of(self.job.tenant))

    def _spec(self) -> dict[str, Any]:
        """The spec of the work, from what was submitted."""
        values = {name: value for name, value in self.job.spec.items() if name not in NOT_THE_SPECS}
        if values.get("pool") == "ray" and self.ray_address and not values.get("ray_address"):
            values["ray_address"] = self.ray_address
        return values

    def _finish(self, status: str, **more: Any) -> None:
        """End the job, after everything that the heart has still to say."""
        self.heart.stop()
        self.store.finish(self.job.id, self.job.attempt, status, **more)

    def _fail(self, reason: str, message: str) -> str:
        """FAILED."""
        LOG.error("%s: %s", reason, message)
        self._finish(FAILED, reason=reason, message=message)
        return FAILED

    def _stopped(self) -> str:
        """STOPPED when somebody asked for it; FAILED when its time was up; else given back, to go on elsewhere."""
        self.heart.stop()
        if self.heart.fenced:
            raise Fenced(f"attempt {self.job.attempt} of {self.job.id} lost its job")
        if self.heart.asked:
            self._finish(STOPPED)
            return STOPPED
        if self.heart.overtime is not None:
            return self._fail(self.heart.overtime, self.heart.why_late())
        return self.store.release(self.job.id, self.job.attempt).status

    def _later(self, error: Unavailable) -> str:
        """Given back, to be tried again after a pause; FAILED at last."""
        LOG.warning("%s: %s", error.code, error.message)
        self.heart.stop()
        return self.store.retry_later(
            self.job.id, self.job.attempt, reason=error.code, message=error.message
        ).status

    def _system_error(self, error: OSError) -> str:
        """The system's troubles by their numbers."""
        LOG.exception("the system refused")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._fail("DISK_FULL", "the disk is full: make room, then resume the job")
        if error.errno == errno.ENOMEM:
            return self._fail("OUT_OF_MEMORY", NO_MEMORY)
        return self._fail(
            "INTERNAL", "the operating system refused something; the log of the job says what"
        )


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """A report without its long parts, which the model's directory keeps."""
    return {name: value for name, value in report.items() if len(repr(value)) <= LARGEST_FIGURE}


def main(arguments: Sequence[str] | None = None) -> int:
    """The process. Exit status: 0 done or given back, 1 FAILED, 3 the job is another attempt's."""
    parser = argparse.ArgumentParser(
        prog="xcray.jobs.runner.main", description="run one attempt of a job"
    )
    parser.add_argument("--home", required=True)
    parser.add_argument("--store", default=os.environ.get(STORE_VARIABLE))
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--log", type=Path, help="write the log there too")
    parser.add_argument("--ray-address")
    parser.add_argument("--wanted", type=Path, help="a file to touch while running")
    parser.add_argument(
        "--nice", type=int, default=0, help="how far to stand back for other processes, 0 to 19"
    )
    parser.add_argument(
        "--lease",
        type=float,
        default=20.0,
        help="seconds of silence after which the job may be taken away",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=3.0,
        help="seconds that the training has to stop by itself",
    )
    parser.add_argument("--log-bytes", type=float, help="largest log of the job")
    chosen = parser.parse_args(arguments)
    whereabouts = Whereabouts(chosen.job, chosen.attempt)
    log_runner(chosen.log, whereabouts)
    tracing.switch_on("xcray-runner")
    faulthandler.enable()  # crashes of native code are traced too
    lower_priority(chosen.nice)
    home, flag = Home(chosen.home), StopFlag()
    signal.signal(signal.SIGTERM, lambda _number, _frame: flag.set())
    store = JobStore(
        chosen.store or home.store_url, upgrade=False
    )  # never: the program that launched us is at work with it
    log = Bound(home.log(chosen.job), int(chosen.log_bytes)) if chosen.log_bytes else None
    how: dict[str, Any] = {
        "lease_seconds": chosen.lease,
        "patience": chosen.patience,
        "log": log,
        "wanted": chosen.wanted,
    }
    how["phase"] = whereabouts.at
    try:
        end = run_attempt(
            store,
            home,
            chosen.job,
            chosen.attempt,
            ray_address=chosen.ray_address,
            flag=flag,
            **how,
        )
    except XcrayError as error:  # the store itself can't be had: the lease will run out, and another attempt follows
        LOG.error("%s: %s", error.code, error.message)
        return 2
    finally:
        tracing.switch_off()
        store.close()
    LOG.info("end: %s", end)
    return {FAILED: 1, FENCED: 3}.get(end, 0)


if __name__ == "__main__":
    sys.exit(main())
