"""The second thread of a runner: keeps the lease, hears of stops, and writes progress so that the training needn't wait."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from xcray.errors import Fenced, XcrayError
from xcray.execution.pool import StopFlag
from xcray.jobs.store import JobStore
from xcray.train import Progress

LOG: Final = logging.getLogger(__name__)


class Heart:
    """Beats for one attempt from `start` to `stop`.

    `flag` is set when the job shall stop; `asked` tells that a person wished it, `fenced` that a newer attempt owns the job. When
    the training does not stop within `patience` seconds after that, the process ends: nobody wants its work.
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
        patience: float = 30.0,
        wanted: Path | None = None,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        self.flag, self.asked, self.fenced = flag, False, False
        self._store, self._job_id, self._attempt = store, job_id, attempt
        self._lease, self._beat_seconds, self._report_seconds = lease_seconds, beat_seconds, report_seconds
        self._patience, self._wanted, self._end_process = patience, wanted, end_process
        self._kept: deque[tuple[str, dict[str, Any]]] = deque()  # events of which none is left out
        self._figures: dict[str, Any] = {}
        self._latest: dict[str, Any] | None = None
        self._phase = ""
        self._told: float | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xcray-heart", daemon=True)

    def start(self) -> None:
        """Beat once, so that an attempt that is not the running one does nothing at all, then go on in a thread. Raises Fenced."""
        self.beat()
        self._thread.start()

    def stop(self) -> None:
        """Hand over what is left to report and end. After it nothing is written."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._quietly(self._report)

    def progress(self, progress: Progress) -> None:
        """Take a report of the training: phases and epochs are kept all, progress as often as the store is written."""
        data = {name: _finite(value) for name, value in progress._asdict().items() if name != "figures"}
        if progress.figures:
            data["figures"] = {name: _finite(value) for name, value in progress.figures.items()}
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
        """Renew the lease and hear whether to stop. Raises Fenced."""
        if self._store.heartbeat(self._job_id, self._attempt, lease_seconds=self._lease):
            self.asked = True
            self.flag.set()
        if self._wanted is not None and self._wanted.parent.is_dir():
            self._wanted.touch()

    def _run(self) -> None:
        """The thread: reports often, beats now and then."""
        due = time.monotonic() + self._beat_seconds
        while not self._ending.wait(self._report_seconds):
            self._quietly(self._report)
            if time.monotonic() >= due:
                self._quietly(self.beat)
                due = time.monotonic() + self._beat_seconds
            self._lose_patience()

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
            self._store.append(self._job_id, self._attempt, "progress", latest)

    def _lose_patience(self) -> None:
        """End the process when the training ignores the flag for too long."""
        if not self.flag.is_set():
            return
        self._told = self._told or time.monotonic()
        if time.monotonic() - self._told > self._patience:
            LOG.error("the training did not stop within %.0f s: ending the process", self._patience)
            self._end_process(70)


def _finite(value: Any) -> Any:
    """JSON knows no infinity and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
