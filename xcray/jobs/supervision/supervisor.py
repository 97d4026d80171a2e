"""The supervisor thread: expires, claims and launches jobs. Any number of replicas can run one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from xcray.errors import Fenced, Unavailable, XcrayError
from xcray.jobs.database.leases import process_name
from xcray.jobs.job import Job
from xcray.jobs.store.attempts import LAUNCH, MAX_LAUNCH_ATTEMPTS
from xcray.jobs.store.counters import make_counter
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.metric_deltas import QUEUE_POLLS
from xcray.jobs.store.quotas import RunningQuota
from xcray.jobs.supervision.launch import Launcher, RunnerId

LOG: Final = logging.getLogger(__name__)
# seconds beyond `stop_grace_seconds`, in which the runner's own monitor exits it
STOP_MARGIN_SECONDS: Final = 0.8
POLL_REPORT_SECONDS: Final = 5.0  # between two increments of the counter of queue polls
# the same for a runner whose job has ended: it writes its last records
EXIT_GRACE_SECONDS: Final = 10.0


class _PendingLaunch(NamedTuple):
    """A launch in progress."""

    job: Job
    outcome: Future[None]
    deadline: float  # monotonic seconds


@dataclass(frozen=True)
class SupervisorOptions:
    """Limits and times of a supervisor.

    start_seconds: lease of a claimed job, until its runner's own heartbeats take over; it is
    renewed for at most `launch_seconds` while the launch is in progress (a local Ray may have to
    start). stop_grace_seconds: see `Supervisor`. max_attempts: limit of lost attempts of jobs
    without a limit of their own. max_launch_attempts: launches that can fail, for example while Ray
    is unavailable, with growing pauses of about an hour and a half in total; a job can set fewer.
    """

    max_running: int = 1
    tick_seconds: float = 0.5
    start_seconds: float = 60.0
    launch_seconds: float = 180.0
    stop_grace_seconds: float = 3.0
    max_attempts: int = 3
    max_launch_attempts: int = MAX_LAUNCH_ATTEMPTS


class Supervisor:
    """Claims jobs while fewer than `max_running` run, and launches them with `launcher`.

    A runner that must end is terminated with its processes if it does not end by itself:
    `stop_grace_seconds` and a margin after a stop was requested, or when its job has another
    attempt.
    """

    def __init__(
        self,
        store: JobStore,
        launcher: Launcher,
        options: SupervisorOptions = SupervisorOptions(),
        *,
        quota: RunningQuota | None = None,
        has_space: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create a supervisor. `start` starts its thread.

        quota: limits of running jobs per tenant. has_space: whether the disk has space for running
        jobs; while it has not, no job is claimed.
        """
        self._store = store
        self._launcher = launcher
        self._options = options
        self._quota = quota
        self._has_space = has_space
        self._owner = process_name()
        # own runners that must end -> since when, in monotonic seconds
        self._unwanted_since: dict[RunnerId, float] = {}
        # ended runners that are not recorded in the store yet
        self._ended_runners: list[RunnerId] = []
        self._launches: list[_PendingLaunch] = []
        self._executor = ThreadPoolExecutor(
            max(1, options.max_running), thread_name_prefix="xcray-launch"
        )
        self._next_report = 0.0  # when to count the next queue poll
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xcray-supervisor", daemon=True)

    def start(self) -> None:
        """Start the thread and return at once."""
        self._thread.start()

    def stop(self) -> None:
        """Claim no more jobs. Running jobs continue.

        Launches in progress get a moment to finish.
        """
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def step(self) -> None:
        """Run one tick: expire jobs, check launches, claim and launch as many as allowed."""
        # First: a suspended runner can be what locks the store.
        self._ended_runners += self._launcher.poll()
        while self._ended_runners:
            self._handle_exit(*self._ended_runners[0])
            del self._ended_runners[0]  # Deleted afterwards: what could not be recorded is retried.
        for lost in self._store.attempts.expire(
            max_attempts=self._options.max_attempts, unstable_pools=self._launcher.unstable_pools()
        ):
            LOG.warning("job %s lost its runner: now %s", lost.id, lost.status)
        self._launches = [launch for launch in self._launches if self._check_launch(launch)]
        self._terminate_unwanted()
        if self._quota is not None:
            self._quota.refresh()
        while self._has_space() and (job := self._claim_job()):
            LOG.info("job %s: attempt %d", job.id, job.attempt)
            deadline = time.monotonic() + self._options.launch_seconds
            self._launches.append(
                _PendingLaunch(job, self._executor.submit(self._launcher.launch, job), deadline)
            )
        if time.monotonic() >= self._next_report:
            self._store.counters.increment_all({make_counter(QUEUE_POLLS): 1.0})
            self._next_report = time.monotonic() + POLL_REPORT_SECONDS

    def _claim_job(self) -> Job | None:
        """Claim the next job, or return None."""
        return self._store.attempts.claim(
            self._owner,
            lease_seconds=self._options.start_seconds,
            max_running=self._options.max_running,
            quota=self._quota,
            excluded_pools=self._launcher.unavailable_pools(),
        )

    def _run(self) -> None:
        """Run ticks. An error in one tick does not end the thread."""
        while not self._ending.wait(self._options.tick_seconds):
            try:
                self.step()
            except XcrayError as error:
                LOG.warning("supervisor: %s", error.message)
            except Exception:
                LOG.exception("supervisor")

    def _handle_exit(self, job_id: str, attempt: int) -> None:
        """Mark the attempt of an ended runner as lost, if it is still the running one."""
        try:
            job = self._store.attempts.mark_lost(
                job_id,
                attempt,
                max_attempts=self._options.max_attempts,
                unstable_pools=self._launcher.unstable_pools(),
            )
        except Fenced:
            return
        LOG.warning(
            "job %s: the runner of attempt %d ended without an outcome: now %s",
            job_id,
            attempt,
            job.status,
        )

    def _terminate_unwanted(self) -> None:
        """Terminate own runners that should have ended by themselves.

        They are stuck, suspended by a signal, or ignore their stop flag.
        """
        now, ours = time.monotonic(), self._launcher.list_runners()
        running_ids = (
            {
                RunnerId(job.id, job.attempt): not job.stop_requested
                for job in self._store.attempts.list_running()
            }
            if ours
            else {}
        )
        self._unwanted_since = {
            runner: self._unwanted_since.get(runner, now)
            for runner in ours
            if not running_ids.get(runner, False)
        }
        for runner, since in self._unwanted_since.items():
            if now - since > self._options.stop_grace_seconds + (
                STOP_MARGIN_SECONDS if runner in running_ids else EXIT_GRACE_SECONDS
            ):
                LOG.warning(
                    "job %s: the runner of attempt %d does not end: killing its processes", *runner
                )
                self._launcher.terminate(runner)
                # Retried after the same time, not in every tick: a cluster can take its time.
                self._unwanted_since[runner] = now

    def _check_launch(self, launch: _PendingLaunch) -> bool:
        """Return whether a launch is still in progress.

        Renews its lease until the deadline, and releases the job if the launch failed, even later.
        """
        job, outcome, deadline = launch
        try:
            if not outcome.done():
                if time.monotonic() < deadline:
                    self._store.attempts.heartbeat(
                        job.id, job.attempt, lease_seconds=self._options.start_seconds
                    )
                return True
            error = outcome.exception()
            if error is not None:
                LOG.warning("job %s could not be launched: %s", job.id, error)
                self._return_job(job, error)
        except Fenced:
            # it ended, or another attempt owns the job
            return False
        return False

    def _return_job(self, job: Job, error: BaseException) -> None:
        """Release a job that could not be launched.

        While its cluster is unavailable it keeps its place in the queue and is not claimed.
        """
        if (
            isinstance(error, Unavailable)
            and job.spec.get("pool") in self._launcher.unavailable_pools()
        ):
            self._store.attempts.release(job.id, job.attempt)
            return
        self._store.attempts.retry_later(
            job.id,
            job.attempt,
            reason=LAUNCH,
            message=_launch_error_message(error),
            max_attempts=self._options.max_launch_attempts,
        )


def _launch_error_message(error: BaseException) -> str:
    """Return why a launch failed, for users, without paths of this machine."""
    return (
        error.message
        if isinstance(error, XcrayError)
        else f"the runner could not be started ({type(error).__name__})"
    )
