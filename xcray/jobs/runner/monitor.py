"""The attempt monitor: heartbeats and progress reports in one thread, stop requests in another.

Two threads ensure that a store that is slow to write never delays a stop, which is only read.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.errors import Fenced, Stopped, XcrayError
from xcray.jobs.job import EXPIRED, TIMEOUT
from xcray.jobs.runner.log_truncation import truncate_log
from xcray.jobs.states import FAILED, RUNNING, STOPPED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.metric_deltas import AttemptMetrics, to_event_data
from xcray.system.processes import descendants
from xcray.training import Progress
from xcray.workers.pool import StopFlag

LOG: Final = logging.getLogger(__name__)
STOP_POLL_SECONDS: Final = 0.4
# Time for a training to save its current work when its job is released.
RELEASE_GRACE_SECONDS: Final = 8.0
OVERTIME_MESSAGES: Final = {
    TIMEOUT: "its running time is used up; finished work is kept: resume it to run for as long "
    "again",
    EXPIRED: "the time by which it had to end has passed; finished work is kept: submit it again "
    "with a later one",
}


class LogLimit(NamedTuple):
    """A log file and its size limit."""

    path: Path
    max_bytes: int


def exit_with_children(code: int) -> None:
    """Kill all descendants of this process by id, and exit at once."""
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(code)


@dataclass(frozen=True)
class MonitorOptions:
    """Times, files and callbacks of an `AttemptMonitor`.

    heartbeat_seconds, report_seconds, stop_poll_seconds: between two heartbeats (at most a quarter
    of the lease), two writes of events, two looks whether to stop. keep_alive_file: touched while
    the attempt runs. on_phase: called with each phase as it starts. activity: returns a note on
    what the process does in addition to its progress, such as compiling kernels; "" for nothing.
    """

    lease_seconds: float = 20.0
    heartbeat_seconds: float = 3.0
    report_seconds: float = 0.5
    stop_poll_seconds: float = STOP_POLL_SECONDS
    stop_grace_seconds: float = 3.0
    release_grace_seconds: float = RELEASE_GRACE_SECONDS
    keep_alive_file: Path | None = None
    log_limit: LogLimit | None = None
    on_phase: Callable[[str], None] = lambda _: None
    activity: Callable[[], str] = lambda: ""
    exit_process: Callable[[int], None] = exit_with_children


class AttemptMonitor:
    """Monitors one attempt from `start` to `stop`.

    `stop_flag` is set when the job must stop. The reason is one of: `stop_requested`, a user asked
    for it; `overtime_reason`, its time is up; `fenced`, a newer attempt owns the job. With none of
    these, the job is to be released.

    If the training does not stop within `stop_grace_seconds`, or `release_grace_seconds` when the
    job is released, the monitor records the outcome in the store and exits the process with its
    children. Finished work is on disk already.
    """

    def __init__(
        self,
        store: JobStore,
        job_id: str,
        attempt: int,
        stop_flag: StopFlag,
        options: MonitorOptions = MonitorOptions(),
    ) -> None:
        self.stop_flag = stop_flag
        self.stop_requested = False
        self.fenced = False
        self.overtime_reason: str | None = None
        self._store = store
        self._job_id = job_id
        self._attempt = attempt
        self._options = options
        self._heartbeat_seconds = min(options.heartbeat_seconds, options.lease_seconds / 4)
        # events that must all be written
        self._pending_events: deque[tuple[str, dict[str, Any]]] = deque()
        self._newest: dict[str, Any] = {}
        self._latest_progress: dict[str, Any] | None = None
        self._reported: dict[str, Any] = {}  # the progress that was written last
        self._activity = ""
        self._phase = ""
        self._metrics = AttemptMetrics()
        self._stop_seen_at: float | None = None
        self._counted_until = time.monotonic()  # the store has the running time up to here
        self._is_committed = False
        self._last_active = self._counted_until  # when the stop watcher last ran
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_heartbeat, name="xcray-heartbeat", daemon=True),
            threading.Thread(target=self._run_stop_watcher, name="xcray-stop-watcher", daemon=True),
        ]

    def start(self) -> None:
        """Send a first heartbeat, then start the threads. Raises Fenced.

        The first heartbeat prevents an attempt that is not the running one from doing anything.
        """
        self.send_heartbeat()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Write the remaining reports and stop. Nothing is written afterwards."""
        self._ending.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._run_step(self._write_reports)

    def report_progress(self, progress: Progress) -> None:
        """Take a progress report. Phases and epochs are all kept, progress is sampled.

        Raises Stopped if this process was suspended for longer than its lease and is no longer the
        running attempt: it must not write where the next attempt works.
        """
        if time.monotonic() - self._last_active > self._options.lease_seconds:
            self._last_active = time.monotonic()
            self._run_step(self.send_heartbeat)
            if self.fenced:
                raise Stopped("this process was suspended, and another attempt runs its job")
        data = to_event_data(progress)
        self._metrics.update(progress)
        if progress.phase != self._phase:
            self._options.on_phase(progress.phase)
        with self._lock:
            if progress.phase != self._phase:
                self._phase = progress.phase
                self._pending_events.append(("phase", {"phase": progress.phase}))
                LOG.info("phase %s", progress.phase)
            if data.get("newest") not in (None, self._newest):
                self._newest = data["newest"]
                self._pending_events.append(("epoch", data["newest"]))
            self._latest_progress = data

    def send_heartbeat(self) -> None:
        """Renew the lease, report the running time, and check for a stop. Raises Fenced."""
        now = time.monotonic()
        if self._store.attempts.heartbeat(
            self._job_id,
            self._attempt,
            lease_seconds=self._options.lease_seconds,
            ran_seconds=now - self._counted_until,
        ):
            self._counted_until = now
            self._poll_stop()
        self._counted_until = now
        if (
            self._options.keep_alive_file is not None
            and self._options.keep_alive_file.parent.is_dir()
        ):
            self._options.keep_alive_file.touch()

    def commit(self) -> None:
        """Enter the phase in which the result becomes public and a stop comes too late.

        Raises Stopped if a stop was requested before, and Fenced.
        """
        self.send_heartbeat()
        if self.stop_flag.is_set():
            raise Stopped("stopped before its result was published; finished work is kept")
        self._is_committed = True

    def record_stop(self) -> str:
        """Record why the attempt ends before its work is done, and return the job's status.

        STOPPED if a stop was requested, FAILED if its time was up, else released to continue
        elsewhere. Raises Fenced.
        """
        if self.fenced:
            raise Fenced(f"attempt {self._attempt} of {self._job_id} lost its job")
        attempts, mine = self._store.attempts, (self._job_id, self._attempt)
        if self.stop_requested:
            return attempts.finish(*mine, STOPPED).status
        if self.overtime_reason is None:
            return attempts.release(*mine).status
        message = OVERTIME_MESSAGES[self.overtime_reason]
        LOG.error("%s: %s", self.overtime_reason, message)
        return attempts.finish(*mine, FAILED, reason=self.overtime_reason, message=message).status

    def _run_heartbeat(self) -> None:
        """Write reports often and send heartbeats (first thread)."""
        due = time.monotonic() + self._heartbeat_seconds
        while not self._ending.wait(min(self._options.report_seconds, self._heartbeat_seconds)):
            self._run_step(self._write_reports)
            if time.monotonic() >= due:
                due = time.monotonic() + self._heartbeat_seconds
                self._run_step(self.send_heartbeat)

    def _run_stop_watcher(self) -> None:
        """Poll for stops and enforce them (second thread)."""
        while not self._ending.wait(
            min(self._options.stop_poll_seconds, self._options.stop_grace_seconds)
        ):
            self._last_active = time.monotonic()
            self._run_step(self._poll_stop)
            self._enforce_deadline()
            if self._options.log_limit is not None and truncate_log(*self._options.log_limit):
                LOG.warning("the log became too long; its middle was removed")

    def _poll_stop(self) -> None:
        """Read whether the job must stop, and why. Raises Fenced."""
        job = self._store.jobs.find(self._job_id)
        if job is None or (job.attempt, job.status) != (self._attempt, RUNNING):
            raise Fenced(f"attempt {self._attempt} of {self._job_id} is no longer the running one")
        run_seconds = job.ran_seconds + time.monotonic() - self._counted_until
        overtime = dataclasses.replace(job, ran_seconds=run_seconds).overtime_reason(time.time())
        if job.stop_requested:
            self.stop_requested = True
        elif overtime is not None:
            self.overtime_reason = overtime
        if job.stop_requested or overtime is not None:
            self.stop_flag.set()

    def _run_step(self, step: Callable[[], object]) -> None:
        """Run a step. Set the stop flag if fenced; log other errors, to retry later."""
        try:
            step()
        except Fenced as error:
            if not self.fenced:
                LOG.warning("%s", error.message)
            self.fenced = True
            self.stop_flag.set()
        except (XcrayError, OSError) as error:
            LOG.warning("monitor: %s", error)

    def _write_reports(self) -> None:
        """Write the reports that arrived since the last call."""
        activity = self._options.activity()
        with self._lock:
            latest, self._latest_progress = self._latest_progress, None
            events = list(self._pending_events)
            self._pending_events.clear()
        if activity != self._activity:  # nothing reports progress while it waits
            latest = latest or self._reported or None
        self._reported, self._activity = latest or self._reported, activity
        for kind, data in events:
            self._store.attempts.append_event(self._job_id, self._attempt, kind, data)
        if latest is not None:
            if activity:
                latest = {**latest, "note": ", ".join(filter(None, [activity, latest["note"]]))}
            increments = self._metrics.pending()
            self._store.attempts.append_event(
                self._job_id, self._attempt, "progress", latest, increments=increments
            )
            self._metrics.acknowledge(increments)

    def _enforce_deadline(self) -> None:
        """Exit the process if the training ignores the stop flag for too long."""
        if not self.stop_flag.is_set() or (self._is_committed and not self.fenced):
            return
        self._stop_seen_at = self._stop_seen_at or time.monotonic()
        must_end = self.stop_requested or self.fenced or self.overtime_reason is not None
        grace = (
            self._options.stop_grace_seconds
            if must_end
            else max(self._options.stop_grace_seconds, self._options.release_grace_seconds)
        )
        if time.monotonic() - self._stop_seen_at > grace:
            LOG.error("the training did not stop within %.1f s: ending the process", grace)
            self._run_step(self.record_stop)
            self._options.exit_process(70)
