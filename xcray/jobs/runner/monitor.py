"""What runs beside a training in its process: one thread keeps the lease and writes progress, another hears of stops.

They are two so that a store that is slow to write never delays a stop, which is only read.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Fenced, Stopped, XcrayError
from xcray.jobs.job import TIMEOUT
from xcray.jobs.runner.log_truncation import bound_log
from xcray.jobs.states import FAILED, RUNNING, STOPPED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.metric_deltas import Tally, event_of
from xcray.system.processes import descendants
from xcray.training import Progress
from xcray.workers.pool import StopFlag

LOG: Final = logging.getLogger(__name__)
LISTEN_SECONDS: Final = 0.4
GIVE_BACK_SECONDS: Final = (
    8.0  # a training that was told to give its job back has so long to keep what it is at
)
OVERTIME: Final = {
    TIMEOUT: "the running time it was allowed is used up; what is finished is kept: resume it to go on for as long again",
}
LATE: Final = "the time by which it had to end has come; what is finished is kept: submit it again with a later one"


class Bound(NamedTuple):
    """A log and how large it may become."""

    path: Path
    n_bytes: int


def end_with_children(code: int) -> None:
    """End this process and all that came from it, at once, each by its id."""
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(code)


class Heart:
    """Beats for one attempt from `start` to `stop`.

    `flag` is set when the job shall stop; `asked` tells that a person wished it, `overtime` (a reason) that its time is up,
    `fenced` that a newer attempt owns the job; none of them, that it is to be given back. When the training does not stop within
    `patience` seconds, or GIVE_BACK_SECONDS when the job is given back, the heart says in the store how the job ended, and ends
    the process: what is finished is on disk already.
    """

    def __init__(
        self,
        store: JobStore,
        job_id: str,
        attempt: int,
        flag: StopFlag,
        *,
        lease_seconds: float = 20.0,
        beat_seconds: float = 3.0,
        report_seconds: float = 0.5,
        listen_seconds: float = LISTEN_SECONDS,
        patience: float = 3.0,
        give_back_seconds: float = GIVE_BACK_SECONDS,
        wanted: Path | None = None,
        log: Bound | None = None,
        phase: Callable[[str], None] = lambda _: None,
        end_process: Callable[[int], None] = end_with_children,
    ) -> None:
        """phase: hears of each phase as it begins."""
        self.flag = flag
        self.asked = False
        self.fenced = False
        self.overtime: str | None = None
        self._store = store
        self._job_id = job_id
        self._attempt = attempt
        self._lease = lease_seconds
        self._beat_seconds = min(beat_seconds, lease_seconds / 4)
        self._report_seconds = report_seconds
        self._listen_seconds = listen_seconds
        self._patience = patience
        self._give_back_seconds = give_back_seconds
        self._wanted = wanted
        self._log = log
        self._end_process = end_process
        self._kept: deque[tuple[str, dict[str, Any]]] = deque()  # events of which none is left out
        self._figures: dict[str, Any] = {}
        self._latest: dict[str, Any] | None = None
        self._phase = ""
        self._tally = Tally()
        self._tell_phase = phase
        self._told: float | None = None
        self._counted = time.monotonic()  # running time up to here is in the store
        self._committed = False
        self._awake = self._counted  # when the second thread last ran
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="xcray-heart", daemon=True),
            threading.Thread(target=self._listen, name="xcray-ear", daemon=True),
        ]

    def start(self) -> None:
        """Beat once, so that an attempt that is not the running one does nothing at all, then go on in threads. Raises Fenced."""
        self.beat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Hand over what is left to report and end. After it nothing is written."""
        self._ending.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._quietly(self._report)

    def progress(self, progress: Progress) -> None:
        """Take a report of the training: phases and epochs are kept all, progress as often as the store is written.

        Raises Stopped in a process that stood still for longer than its lease and is not the running attempt any more: what
        it has in hand must not come to where the next attempt works.
        """
        if time.monotonic() - self._awake > self._lease:
            self._awake = time.monotonic()
            self._quietly(self.beat)
            if self.fenced:
                raise Stopped("this process stood still, and another attempt has its job")
        data = event_of(progress)
        self._tally.hear(progress)
        if progress.phase != self._phase:
            self._tell_phase(progress.phase)
        with self._lock:
            if progress.phase != self._phase:
                self._phase = progress.phase
                self._kept.append(("phase", {"phase": progress.phase}))
                LOG.info("phase %s", progress.phase)
            if data.get("figures") not in (None, self._figures):
                self._figures = data["figures"]
                self._kept.append(("epoch", data["figures"]))
            self._latest = data

    def beat(self) -> None:
        """Renew the lease, count the running time, and hear whether to stop. Raises Fenced."""
        now = time.monotonic()
        if self._store.heartbeat(
            self._job_id, self._attempt, lease_seconds=self._lease, ran_seconds=now - self._counted
        ):
            self._counted = now
            self._hear()
        self._counted = now
        if self._wanted is not None and self._wanted.parent.is_dir():
            self._wanted.touch()

    def commit(self) -> None:
        """From here on the job's result becomes public, within moments, and a stop comes too late.

        Raises Stopped when one came before, and Fenced.
        """
        self.beat()
        if self.flag.is_set():
            raise Stopped("stopped before its result was published; what is finished is kept")
        self._committed = True

    def _run(self) -> None:
        """The first thread: reports often, beats now and then."""
        due = time.monotonic() + self._beat_seconds
        while not self._ending.wait(min(self._report_seconds, self._beat_seconds)):
            self._quietly(self._report)
            if time.monotonic() >= due:
                due = time.monotonic() + self._beat_seconds
                self._quietly(self.beat)
                self._quietly(self._store.attend)

    def _listen(self) -> None:
        """The second thread: hears, and sees to it that what was heard happens."""
        while not self._ending.wait(min(self._listen_seconds, self._patience)):
            self._awake = time.monotonic()
            self._quietly(self._hear)
            self._lose_patience()
            if self._log is not None and bound_log(*self._log):
                LOG.warning("the log became too long; its middle was left out")

    def _hear(self) -> None:
        """Read whether to stop, and why. Raises Fenced."""
        job = self._store.find_job(self._job_id)
        if job is None or (job.attempt, job.status) != (self._attempt, RUNNING):
            raise Fenced(
                f"attempt {self._attempt} of {self._job_id} is not the running one any more"
            )
        ran = job.ran_seconds + time.monotonic() - self._counted
        overtime = dataclasses.replace(job, ran_seconds=ran).overtime(time.time())
        if job.stop_requested:
            self.asked = True
        elif overtime is not None:
            self.overtime = overtime
        if job.stop_requested or overtime is not None:
            self.flag.set()

    def _quietly(self, step: Callable[[], None]) -> None:
        """Do a step; being fenced sets the flag, a store that can't answer is asked again later."""
        try:
            step()
        except Fenced as error:
            if not self.fenced:
                LOG.warning("%s", error.message)
            self.fenced = True
            self.flag.set()
        except (XcrayError, OSError) as error:
            LOG.warning("heart: %s", error)

    def _report(self) -> None:
        """Write what was reported since."""
        with self._lock:
            latest, self._latest = self._latest, None
            kept = list(self._kept)
            self._kept.clear()
        for kind, data in kept:
            self._store.append(self._job_id, self._attempt, kind, data)
        if latest is not None:
            news = self._tally.news()
            self._store.append(self._job_id, self._attempt, "progress", latest, counted=news)
            self._tally.know(news)

    def _lose_patience(self) -> None:
        """End the process when the training ignores the flag for too long, and say how the job ended in its place."""
        if not self.flag.is_set() or (self._committed and not self.fenced):
            return
        self._told = self._told or time.monotonic()
        unwanted = self.asked or self.fenced or self.overtime is not None
        patience = self._patience if unwanted else max(self._patience, self._give_back_seconds)
        if time.monotonic() - self._told > patience:
            LOG.error("the training did not stop within %.1f s: ending the process", patience)
            self._quietly(self._last_word)
            self._end_process(70)

    def _last_word(self) -> None:
        """What the training would have said."""
        if self.fenced:
            return
        if self.asked:
            self._store.finish(self._job_id, self._attempt, STOPPED)
        elif self.overtime is not None:
            self._store.finish(
                self._job_id, self._attempt, FAILED, reason=self.overtime, message=self.why_late()
            )
        else:
            self._store.release(self._job_id, self._attempt)

    def why_late(self) -> str:
        """The sentence for `overtime`."""
        return OVERTIME.get(self.overtime or "", LATE)
