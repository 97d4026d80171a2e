"""The thread that keeps jobs going: expire, claim, launch. Any number of replicas may run one; the store arbitrates."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from xcray.errors import Fenced, Unavailable, XcrayError
from xcray.jobs.database.clients import process_name
from xcray.jobs.job import Job
from xcray.jobs.store.attempts import LAUNCH, MOST_LAUNCHES
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.metric_deltas import LOOKS
from xcray.jobs.store.quotas import RunningQuota
from xcray.jobs.supervision.launch import Ended, Launcher

LOG: Final = logging.getLogger(__name__)
STOPPING: Final = 0.8  # seconds beyond `stop_seconds`, in which the runner's own heart ends it
TELL_SECONDS: Final = 5.0  # between two notes in the store that somebody looks at the queue
ENDING: Final = 10.0  # the same for a runner whose job has ended: it writes its last words


class _Launch(NamedTuple):
    """A launch under way."""

    job: Job
    outcome: Future[None]
    deadline: float  # monotonic seconds


class Supervisor:
    """Claims jobs while fewer than `cap` run, and has `launcher` start them.

    A runner that nobody wants any more is ended, with its processes, when it does not end by itself: `stop_seconds` and a little
    after a stop was asked for, or when its job is another attempt's. A claimed job's lease lasts `start_seconds`, until its
    runner's own heartbeats take over; it is renewed for at most `launch_seconds` while the launcher is still at it (a local Ray
    may have to start). `max_attempts` bounds lost attempts of jobs that do not say.
    """

    def __init__(
        self,
        store: JobStore,
        launcher: Launcher,
        *,
        cap: int = 1,
        tick_seconds: float = 0.5,
        start_seconds: float = 60.0,
        launch_seconds: float = 180.0,
        max_attempts: int = 3,
        stop_seconds: float = 3.0,
        launch_attempts: int = MOST_LAUNCHES,
        quota: RunningQuota | None = None,
        owner: str | None = None,
    ) -> None:
        """launch_attempts: launches that may fail, as while Ray is away, with growing pauses, about an hour and a half in all;
        fewer when a job says so. quota: how many jobs of a tenant may run."""
        self._store = store
        self._launcher = launcher
        self._cap = cap
        self._tick = tick_seconds
        self._start_seconds = start_seconds
        self._launch_seconds = launch_seconds
        self._max_attempts = max_attempts
        self._stop_seconds = stop_seconds
        self._launch_attempts = launch_attempts
        self._quota = quota
        self._owner = owner or process_name()
        self._unwanted: dict[
            Ended, float
        ] = {}  # runners of ours, since when nobody wants them: monotonic seconds
        self._gone: list[
            Ended
        ] = []  # runners that have ended, of which the store does not know yet
        self._launches: list[_Launch] = []
        self._hands = ThreadPoolExecutor(max(1, cap), thread_name_prefix="xcray-launch")
        self._tell = 0.0  # when to say next that somebody looks at the queue
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xcray-supervisor", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Claim no more. Running jobs go on without us; launches under way are waited for a moment."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)
        self._hands.shutdown(wait=False, cancel_futures=True)

    def step(self) -> None:
        """One tick: take jobs from vanished runners, look after launches, claim and launch what there is room for."""
        self._gone += (
            self._launcher.tend()
        )  # first of all: a runner that stands still may be what locks the store
        while self._gone:
            self._collect(*self._gone[0])
            del self._gone[0]  # after it: what the store did not hear is told again
        for lost in self._store.expire(
            max_attempts=self._max_attempts, spared=self._launcher.shaken()
        ):
            LOG.warning("job %s lost its runner: now %s", lost.id, lost.status)
        self._launches = [launch for launch in self._launches if self._look(launch)]
        self._end_unwanted()
        if self._quota is not None:
            self._quota.look()
        while job := self._claim():
            LOG.info("job %s: attempt %d", job.id, job.attempt)
            deadline = time.monotonic() + self._launch_seconds
            self._launches.append(
                _Launch(job, self._hands.submit(self._launcher.launch, job), deadline)
            )
        if time.monotonic() >= self._tell:
            self._store.count(LOOKS)
            self._store.attend()
            self._tell = time.monotonic() + TELL_SECONDS

    def _claim(self) -> Job | None:
        """The next job, when there is one and room for it."""
        return self._store.claim(
            self._owner,
            lease_seconds=self._start_seconds,
            cap=self._cap,
            most_running_of=self._quota,
            but=self._launcher.away(),
        )

    def _run(self) -> None:
        """The thread: a tick that fails is only a tick."""
        while not self._ending.wait(self._tick):
            try:
                self.step()
            except XcrayError as error:
                LOG.warning("supervisor: %s", error.message)
            except Exception:
                LOG.exception("supervisor")

    def _collect(self, job_id: str, attempt: int) -> None:
        """A runner ended: well, when its attempt is no longer the running one; else it is lost."""
        try:
            job = self._store.lose(
                job_id, attempt, max_attempts=self._max_attempts, spared=self._launcher.shaken()
            )
        except Fenced:
            return
        LOG.warning(
            "job %s: the runner of attempt %d ended without a word: now %s",
            job_id,
            attempt,
            job.status,
        )

    def _end_unwanted(self) -> None:
        """End runners of ours that should have ended by themselves: stuck ones, stopped by a signal, deaf to their flag."""
        now, ours = time.monotonic(), self._launcher.runners()
        wanted = (
            {Ended(job.id, job.attempt): not job.stop_requested for job in self._store.running()}
            if ours
            else {}
        )
        self._unwanted = {
            runner: self._unwanted.get(runner, now)
            for runner in ours
            if not wanted.get(runner, False)
        }
        for runner, since in self._unwanted.items():
            if now - since > self._stop_seconds + (STOPPING if runner in wanted else ENDING):
                LOG.warning(
                    "job %s: the runner of attempt %d does not end: ending its processes", *runner
                )
                self._launcher.end(runner)
                self._unwanted[runner] = (
                    now  # it is told again after as long, not every tick: a cluster may take its time
                )

    def _look(self, launch: _Launch) -> bool:
        """Whether a launch is still under way. Keeps its lease, and gives the job back when it failed."""
        job, outcome, deadline = launch
        try:
            if not outcome.done():
                if time.monotonic() < deadline:
                    self._store.heartbeat(job.id, job.attempt, lease_seconds=self._start_seconds)
                return time.monotonic() < deadline
            error = outcome.exception()
            if error is not None:
                LOG.warning("job %s could not be launched: %s", job.id, error)
                self._give_back(job, error)
        except Fenced:  # it ended, or was taken from us, in between
            return False
        return False

    def _give_back(self, job: Job, error: BaseException) -> None:
        """A job that could not be launched. While its cluster is away it keeps its place in the queue, and is not claimed."""
        if isinstance(error, Unavailable) and job.spec.get("pool") in self._launcher.away():
            self._store.release(job.id, job.attempt)
            return
        self._store.retry_later(
            job.id,
            job.attempt,
            reason=LAUNCH,
            message=_sentence(error),
            max_attempts=self._launch_attempts,
        )


def _sentence(error: BaseException) -> str:
    """Why a launch failed, for people, without paths of this machine."""
    return (
        error.message
        if isinstance(error, XcrayError)
        else f"the runner could not be started ({type(error).__name__})"
    )
