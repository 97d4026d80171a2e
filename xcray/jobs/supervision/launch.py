"""Starting runners: as processes of their own, or as Ray jobs. A runner outlives whoever launched it."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import sqlalchemy as sa

from xcray.errors import Unavailable
from xcray.jobs.home import Home
from xcray.jobs.job import Job
from xcray.jobs.runner.log_truncation import bound_log
from xcray.system.processes import descendants
from xcray.workers.ray.local_cluster import Cluster, ClusterInfo

LOG: Final = logging.getLogger(__name__)
STORE_VARIABLE: Final = "XCRAY_STORE"  # the store's address where it holds a password: command lines are seen by everybody
LOOK_SECONDS: Final = 2.0  # between questions to Ray
ANSWER_SECONDS: Final = 30.0  # that its dashboard has for an answer
SUBMIT_SECONDS: Final = (
    45.0  # that a dashboard has to take a job: a new head is up some time before it takes any
)
SUBMIT_PAUSE: Final = 1.0
SHAKEN_SECONDS: Final = 120.0  # after a cluster was away, in which lost runners are taken to have gone with it: leases are shorter
RAY: Final = frozenset({"ray"})  # pools of jobs that need it
NO_POOL: Final = frozenset[str]()
KEPT_LOG: Final = 16_384  # characters of what a failed driver told Ray
LOG_BYTES: Final = 50_000_000
WELL: Final = (
    0,
    3,
)  # exits of runners that said how their job ended, or left it to another; 1 may be Python's own
GONE: Final = (
    "GONE"  # the cluster knows nothing of the job: it is another than the one that took it
)
OVER: Final = ("SUCCEEDED", "FAILED", "STOPPED", GONE)  # what Ray says of jobs that have ended
_CHILDREN: Final[
    list[subprocess.Popen[bytes]]
] = []  # runners outlive their launcher; as children they must still be collected


class Ended(NamedTuple):
    """A runner; one that ended, well or not: its job says which."""

    job_id: str
    attempt: int


class Launcher(Protocol):
    """What a supervisor needs to start runners."""

    def launch(self, job: Job) -> None:
        """Start the runner of a claimed job's attempt; returns when it is under way. Raises XcrayError or OSError."""

    def tend(self) -> list[Ended]:
        """Called every tick: runners launched here that have ended since."""

    def runners(self) -> list[Ended]:
        """Runners launched here that have not ended, as far as is known."""

    def end(self, runner: Ended) -> None:
        """End a runner that was launched here, with all that came from it; `tend` tells when it is gone. Others are left alone."""

    def away(self) -> frozenset[str]:
        """Pools whose jobs can't be launched now, as far as is known: they are not to be claimed."""

    def shaken(self) -> frozenset[str]:
        """Pools whose cluster is or lately was away: runners lost on it are not to blame."""


class ProcessLauncher:
    """Runners as processes in sessions of their own, writing to logs/JOB.log. They live on when this process dies."""

    def __init__(
        self,
        home: Home,
        store_url: str | None = None,
        nice: int = 0,
        options: Sequence[str] = (),
        log_bytes: int = LOG_BYTES,
        still_seconds: float = 20.0,
    ) -> None:
        """nice: how far runners stand back for other processes, 0 to 19. options: more arguments of theirs. log_bytes: largest
        log of a job that ended without bounding it itself. still_seconds: a runner that a signal has stopped (SIGSTOP) for so long
        is ended: its lease is over, and it may stand in the middle of a write that locks the embedded store for everybody."""
        self._home = home
        self._store_url = store_url or home.store_url
        self._nice = nice
        self._options = tuple(options)
        self._log_bytes = log_bytes
        self._still_seconds = still_seconds
        self._still: dict[Ended, float] = {}  # since when: monotonic seconds
        self._started: dict[Ended, subprocess.Popen[bytes]] = {}

    def launch(self, job: Job) -> None:
        """Start a process. Raises OSError when the system can't."""
        environment = dict(os.environ)
        if not _plain(self._store_url):
            environment[STORE_VARIABLE] = self._store_url
        handle = os.open(self._home.log(job.id), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "ab") as log:
            process = subprocess.Popen(
                [
                    *command(self._home, self._store_url, job),
                    *self._options,
                    "--nice",
                    str(self._nice),
                ],
                cwd=self._home.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started[Ended(job.id, job.attempt)] = process
        _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None] + [process]

    def tend(self) -> list[Ended]:
        """Runners that have ended; their processes are collected, and the log says how those ended that could not say it. Those
        that stand still are ended."""
        now = time.monotonic()
        self._still = {
            key: self._still.get(key, now)
            for key in self.runners()
            if is_stopped(self._started[key].pid)
        }
        for key, since in self._still.items():
            if now - since > self._still_seconds:
                LOG.warning(
                    "job %s: the runner of attempt %d was stopped by a signal: ending its processes",
                    *key,
                )
                self.end(key)
        ended = [key for key, process in list(self._started.items()) if process.poll() is not None]
        for key in ended:
            code = self._started.pop(key).returncode
            log = self._home.log(key.job_id)
            if code not in WELL:
                _append(
                    log,
                    f"the runner of attempt {key.attempt} ended by "
                    + (f"signal {-code}" if code < 0 else f"status {code}"),
                )
            bound_log(log, self._log_bytes)
        return ended

    def runners(self) -> list[Ended]:
        """Runners whose processes live."""
        return [key for key, process in list(self._started.items()) if process.poll() is None]

    def end(self, runner: Ended) -> None:
        """End its process and all below it, each by its id; one that was stopped by a signal too."""
        process = self._started.get(runner)
        if process is not None and process.poll() is None:
            for pid in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()

    def away(self) -> frozenset[str]:
        """None: processes can always be started."""
        return NO_POOL

    def shaken(self) -> frozenset[str]:
        """None."""
        return NO_POOL

    def give_back(self, seconds: float = 10.0) -> None:
        """Tell all to give their jobs back (SIGTERM), and wait until they have, at most so long."""
        for runner in self.runners():
            self._started[runner].terminate()
        deadline = time.monotonic() + seconds
        while self.runners() and time.monotonic() < deadline:
            time.sleep(0.05)


class RayJobLauncher:
    """Runners as Ray jobs on a cluster: seen, logged and stoppable in its dashboard as xcray-NAME-JOB-aATTEMPT.

    A cluster of our own is started with the first job; one that others run is looked at every LOOK_SECONDS, and while it is away
    no job is launched. This process talks to the dashboard only and never becomes a driver.
    """

    def __init__(
        self,
        home: Home,
        cluster: Cluster,
        store_url: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """options: more arguments of runners."""
        self._home = home
        self._cluster = cluster
        self._store_url = store_url or home.store_url
        self._options = tuple(options)
        self._started: dict[Ended, str] = {}
        self._looked = 0.0
        self._away = False
        self._last_away = float("-inf")
        self._hand = ThreadPoolExecutor(
            1, thread_name_prefix="xcray-ray-look"
        )  # a dashboard that hangs holds up nobody else
        self._look: Future[list[Ended]] | None = None

    def launch(self, job: Job) -> None:
        """Submit a Ray job. Raises Unavailable when the cluster can't be had or refuses."""
        info = self._ensured()
        arguments = [
            *self._options,
            "--log",
            str(self._home.log(job.id)),
            "--ray-address",
            info.address,
        ]
        if info.pid:
            arguments += ["--wanted", str(self._home.ray / "wanted")]
        entrypoint = command(self._home, self._store_url, job) + arguments
        metadata = {
            "job": job.id,
            "name": job.name,
            "attempt": str(job.attempt),
            "tenant": job.tenant,
        }
        name = submission_id(job)
        self._submit(info, name, entrypoint=shlex.join(entrypoint), metadata=metadata)
        self._started[Ended(job.id, job.attempt)] = name

    def _submit(self, info: ClusterInfo, name: str, **what: Any) -> None:
        """Submit a job, again and again for SUBMIT_SECONDS: the next in the queue is not to overtake it. Raises Unavailable."""
        deadline = time.monotonic() + SUBMIT_SECONDS
        while True:
            try:
                _client(info).submit_job(submission_id=name, **what)
                return
            except (
                Exception
            ) as error:  # the client raises whatever its HTTP library and its server do
                if _status(info, name) not in ("", GONE):
                    return  # it was taken, and only the answer was lost
                LOG.warning("Ray refused %s: %s", name, str(error)[:500])
                if time.monotonic() > deadline:
                    self._ensured()  # a cluster that went away meanwhile is another matter: its jobs wait
                    raise Unavailable(
                        "Ray's dashboard did not take the job: is the cluster healthy?",
                        code="RAY_SUBMIT",
                    ) from error
            time.sleep(SUBMIT_PAUSE)

    def tend(self) -> list[Ended]:
        """Runners whose Ray job has ended. Keeps a local Ray wanted. Another thread asks Ray; what it said is told here later."""
        if self._look is None:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._looked = time.monotonic()
                self._look = self._hand.submit(self._ended)
            return []
        if not self._look.done():
            return []
        look, self._look = (
            self._look,
            None,
        )  # before its result: a look that failed, as on a full disk, is followed by another
        ended = look.result()
        for key in ended:
            self._started.pop(key, None)
        return ended

    def runners(self) -> list[Ended]:
        """Runners whose Ray jobs have not ended, as far as Ray has said."""
        return list(self._started)

    def end(self, runner: Ended) -> None:
        """Stop its Ray job: Ray ends the driver and the actors with it."""
        name, info = self._started.get(runner), self._cluster.info()
        if name is not None and info is not None:
            self._hand.submit(_stop, info, name)

    def away(self) -> frozenset[str]:
        """Jobs on Ray, while a joined cluster does not answer."""
        return RAY if self._away else NO_POOL

    def shaken(self) -> frozenset[str]:
        """Jobs on Ray, from when a joined cluster does not answer until a lease after it did."""
        return RAY if time.monotonic() - self._last_away < SHAKEN_SECONDS else NO_POOL

    def _ensured(self) -> ClusterInfo:
        """Where the cluster is. Raises Unavailable, and remembers it, when a joined one is away."""
        try:
            info = self._cluster.ensure()
        except Unavailable:
            self._note(away=self._cluster.joined)
            raise
        self._note(away=False)
        return info

    def _note(self, away: bool) -> None:
        """Remember whether the cluster is away, and say when that changes."""
        if away:
            self._last_away = time.monotonic()
        if away != self._away:
            self._away = away
            LOG.warning("Ray is away: its jobs wait" if away else "Ray is back: its jobs go on")

    def _ended(self) -> list[Ended]:
        """Those that have ended; of what failed, the end of Ray's own log is kept with the job's."""
        if self._cluster.joined:
            try:
                self._ensured()
            except Unavailable:
                return []  # nothing is known; the leases of those that went with it run out
        info = self._cluster.info()
        if info is None:  # with Ray, its jobs are gone
            return list(self._started)
        self._cluster.touch()
        ended = []
        for key, name in list(self._started.items()):
            status = _status(info, name)
            if status in OVER:
                ended.append(key)
            if status in ("FAILED", "STOPPED"):
                _keep_log(info, name, self._home.log(key.job_id))
        return ended


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process; where the system does not tell, False."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def command(home: Home, store_url: str, job: Job) -> list[str]:
    """The command of an attempt's runner, without passwords."""
    store = ["--store", store_url] if _plain(store_url) else []
    attempt = ["--job", job.id, "--attempt", str(job.attempt)]
    return [
        sys.executable,
        "-m",
        "xcray.jobs.runner.main",
        "--home",
        str(home.path),
        *store,
        *attempt,
    ]


def submission_id(job: Job) -> str:
    """The name of an attempt in Ray's dashboard. Readable, unique, of harmless characters only."""
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:40] or "job"
    return f"xcray-{name}-{job.id}-a{job.attempt}"


def _plain(url: str) -> bool:
    """Whether an address may be shown."""
    return sa.make_url(url).password is None


def _client(info: ClusterInfo) -> Any:
    """Ray's client for jobs; HTTP only. It would wait for ever for a dashboard that hangs."""
    from ray.job_submission import JobSubmissionClient

    class Patient(JobSubmissionClient):
        """The same, with a limit."""

        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            return super()._do_request(method, endpoint, timeout=ANSWER_SECONDS, **options)

    return Patient(info.dashboard, headers=info.headers)


def _status(info: ClusterInfo, name: str) -> str:
    """What Ray says of a job; GONE when it never heard of it, nothing when it can't say."""
    try:
        return str(_client(info).get_job_status(name))
    except Exception as error:  # see above; the lease decides when Ray can't say
        if "status code 404" in str(error):
            return GONE
        LOG.warning("Ray did not say how %s is: %s", name, type(error).__name__)
        return ""


def _stop(info: ClusterInfo, name: str) -> None:
    """Have Ray stop a job."""
    try:
        _client(info).stop_job(name)
    except Exception as error:  # see above; it is tried again
        LOG.warning("Ray did not stop %s: %s", name, type(error).__name__)


def _keep_log(info: ClusterInfo, name: str, path: Path) -> None:
    """Append the end of what a driver told Ray to its job's log: why a process died is in no other place."""
    try:
        told = _client(info).get_job_logs(name)[-KEPT_LOG:]
    except Exception as error:  # see above; the job's own log has the rest
        LOG.warning("Ray did not give the log of %s: %s", name, type(error).__name__)
        return
    _append(path, f"--- the end of Ray's log of {name}:\n{told}\n---")


def _append(path: Path, told: str) -> None:
    """Add lines to a job's log."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as log:
        log.write(f"{told}\n")
