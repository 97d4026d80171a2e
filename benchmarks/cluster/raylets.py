"""Ray cluster of several nodes on one machine: separate raylets without shared memory or folders.

    enter(arguments, module="...")                 # see tests.robustness.faults.stage: namespaces
    with nodes(folder, redis=True) as ray:         # the head, with no CPU
        first = ray.add(cpus=1, hide=[data])       # a node that does not see a folder
        ray.head.run(["xcray", "train", ...])      # drivers live on the head
        first.kill()                               # all its processes at once
        ray.add(); first.cut(); first.heal(); first.stop(); ray.revive_head()

With namespaces, a node has its own processes, network, mounts and shared memory. The network is a
bridge, a partition is a link that is down, and the end of this process ends everything. Without
namespaces, nodes are process groups at 127.0.0.2, 127.0.0.3 and so on: they can be killed but not
cut off, and they see all folders.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.robustness.faults.service import environment as clean
from tests.robustness.faults.stage import PR_SET_PDEATHSIG, SPACES, kill, namespaces, until
from xcray.system.processes import find_descendants
from xcray.workers.ray.session import (
    free_port,
    local_ray_environment,
    takes_jobs,
)
from xcray.workers.ray.token import write_token

INIT: Final = Path(__file__).with_name("node_init.py")
NET: Final = "10.77.0"
US: Final = 254  # address of the test process on the bridge
STORE: Final = 80 << 20  # bytes of a node's object store: the minimum of Ray
STARTED: Final = "Ray runtime started"
START_SECONDS: Final = 240.0  # joining a head that has just started can hang
TRIES: Final = 4
LINKS: Final = count()
SOON: Final = {  # a node with killed processes counts as dead after two seconds, not thirteen
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    # A dead node refuses connections at once; a slow one has half a minute to answer.
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "3",
}
OWN: Final = tuple(space for space in SPACES if space != "--user")


class Node:
    """One raylet with its processes. number: number of its IP address in the network."""

    def __init__(
        self, ray: Nodes, number: int, words: Sequence[str], hide: Sequence[Path] = ()
    ) -> None:
        self.ray = ray
        self.number = number
        self.address = ray.address(number)
        self.requested_at = time.time()
        self.link = (
            f"v{next(LINKS)}"  # a new name: the kernel removes the link of a dead node later
        )
        self.folder = ray.folder / f"node-{ray.count}"
        self.log = ray.folder / f"node-{ray.count}.log"
        self.folder.mkdir()
        ray.count += 1
        fields = {
            "command": list(words),
            "environment": ray.environment,
            "before": self._before(hide) if namespaces() else [],
        }
        own = ["unshare", *OWN] if namespaces() else []
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*own, sys.executable, str(INIT), json.dumps(fields)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                preexec_fn=_die,
            )
        self.pid = self.process.pid
        if namespaces():
            self.pid = until(lambda: _only_child(self.process.pid), "a node's first process")
            until(lambda: _elsewhere(self.pid), "a node's own network")
            _ip(
                "link",
                "add",
                self.link,
                "type",
                "veth",
                "peer",
                "name",
                "e0",
                "netns",
                str(self.pid),
            )
            _ip("link", "set", self.link, "master", "br0", "up")
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def came(self) -> bool:
        """Wait until Ray and the agent that takes jobs run on this node, and return True.

        Return False if Ray gave up, as on a slow machine, or if it hangs.
        """

        place = self.folder if namespaces() else self.ray.temporary

        def up() -> bool:
            return STARTED in self.log.read_text(errors="replace") and takes_jobs(place)

        deadline = time.monotonic() + START_SECONDS
        while not up() and self.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.alive and not up():
            self.kill()
            return False
        return up()

    @property
    def alive(self) -> bool:
        """Whether the first process of the node is alive."""
        return self.process.poll() is None

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-2000:]

    def kill(self) -> float:
        """Kill all processes with SIGKILL and return the time of the kill."""
        when = time.time()
        if namespaces():
            kill(self.pid)
        else:
            for process in find_descendants([self.process.pid]):
                kill(process.pid)
        self.process.kill()
        self.process.wait()
        return when

    def stop(self, seconds: float = 30.0) -> None:
        """Send SIGTERM, as to a pod, and wait until the node ends."""
        kill(self.pid, signal.SIGTERM)
        self.process.wait(seconds)

    def freeze(self, number: int = signal.SIGSTOP, word: str = "") -> int:
        """Signal the processes whose title begins with a match of `word`; return their number."""
        results = [
            each.pid
            for each in find_descendants([self.pid])
            if each.pid not in (self.pid, self.process.pid) and _title(each.pid, word)
        ]
        return sum(kill(pid, number) for pid in results)

    def hold(self, number: int = signal.SIGSTOP) -> int:
        """Send SIGSTOP or SIGCONT to the actors, not to Ray's agents; return their number."""
        return self.freeze(number, r"ray::(xcray|\w+Worker)")

    def cut(self) -> float:
        """Take the network link down and return the time. Needs namespaces."""
        _ip("link", "set", self.link, "down")
        return time.time()

    def heal(self) -> float:
        """Take the network link up and return the time. Needs namespaces."""
        _ip("link", "set", self.link, "up")
        return time.time()

    def bytes_sent(self) -> int:
        """Return the number of bytes sent over the bridge. Needs namespaces."""
        (result,) = json.loads(_ip("-s", "-j", "link", "show", self.link))
        return int(result["stats64"]["rx"]["bytes"])

    def start(self, words: Sequence[str], log: Path, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a process on this node, for example a driver.

        settings: variables such as XCRAY_..., see `tests.robustness.faults.service.environment`.
        """
        into = (
            ["nsenter", f"--target={self.pid}", "--net", "--ipc", "--mount", "--pid", "--"]
            if namespaces()
            else []
        )
        with log.open("ab") as out:
            return subprocess.Popen(
                [*into, "env", "-C", str(self.ray.folder), *words],
                env={
                    **self.ray.environment,
                    "RAY_ADDRESS": self.ray.gcs,
                    **{name: str(value) for name, value in settings.items()},
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_die,
            )

    def run(self, words: Sequence[str], seconds: float = 600.0, **settings: Any) -> str:
        """Run a command on this node and return its output. Raises AssertionError if it fails."""
        log = self.ray.folder / f"run-{secrets.token_hex(4)}.log"
        with self.start(words, log, **settings) as process:
            status = process.wait(seconds)
        assert status == 0, f"{words}: status {status}\n{log.read_text(errors='replace')[-3000:]}"
        return log.read_text(errors="replace")

    def drain(self, node_id: str, seconds: int = 60) -> str:
        """Report to Ray that the node `node_id` ends soon, as a spot market does."""
        reason = [
            "--reason",
            "DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message",
            "spot",
            "--deadline-remaining-seconds",
            str(seconds),
        ]
        return self.run([*RAY, "drain-node", "--node-id", node_id, *reason])

    def _before(self, hide: Sequence[Path]) -> list[list[str]]:
        """Return the commands that set up network, shared memory and folders before Ray starts."""
        tmpfs = ["mount", "-t", "tmpfs", "-o"]
        return [
            ["ip", "link", "set", "lo", "up"],
            ["ip", "addr", "add", f"{self.address}/24", "dev", "e0"],
            ["ip", "link", "set", "e0", "up"],
            [*tmpfs, "size=1g", "shm", "/dev/shm"],
            ["mount", "--bind", str(self.folder), str(self.ray.temporary)],
            *([*tmpfs, "size=1m,mode=755", "hidden", str(path)] for path in hide),
        ]


RAY: Final = (sys.executable, "-m", "xcray.workers.ray.session")  # with a patient start


class Nodes:
    """A Ray cluster: its head and the nodes added to it. Created by `nodes`."""

    def __init__(
        self,
        folder: Path,
        *,
        dashboard: bool,
        redis: bool,
        quick: bool,
        patient: bool,
        store: int,
        head_cpus: int,
    ) -> None:
        self.folder = folder
        self.store = store
        self.count = 0
        self._redis_port = 0
        self.temporary = folder / "t"
        self.temporary.mkdir()
        self.token = folder / "token"
        write_token(self.token)
        self.options: dict[str, Any] = {"head_cpus": head_cpus, "dashboard": dashboard}
        self.environment = {
            **clean(folder),
            **{
                name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")
            },  # selects the kernels and so the bits of results
            **local_ray_environment(self.token),
            **(SOON if quick else {}),
            **({"RAY_health_check_timeout_ms": "1000"} if quick and not patient else {}),
            "RAY_NUM_REDIS_GET_RETRIES": "20",
        }
        self.redis: subprocess.Popen[bytes] | None = None
        self.gcs_port, self.dashboard_port = (
            (6379, 8265) if namespaces() else (free_port(), free_port())
        )
        if namespaces():
            _ip("link", "add", "br0", "type", "bridge")
            _ip("addr", "add", f"{NET}.{US}/24", "dev", "br0")
            _ip("link", "set", "br0", "up")
        if redis:
            self._start_redis()
        self.others: list[Node] = []
        self.head = self._new_head()

    @property
    def gcs(self) -> str:
        """The address that drivers join."""
        return f"{self.address(1)}:{self.gcs_port}"

    @property
    def dashboard(self) -> str:
        """The URL to which jobs are submitted."""
        return f"http://{self.address(1)}:{self.dashboard_port}"

    @property
    def joined(self) -> dict[str, str]:
        """Settings of a service that uses this Ray."""
        return {
            "XCRAY_RAY_ADDRESS": self.gcs,
            "XCRAY_RAY_DASHBOARD": self.dashboard,
            "XCRAY_RAY_TOKEN_PATH": str(self.token),
        }

    def address(self, number: int) -> str:
        """Return the IP address of a node by its number; 1 is the head."""
        return f"{NET}.{number}" if namespaces() else f"127.0.0.{number + 1}"

    def add(
        self,
        cpus: int = 1,
        hide: Sequence[Path] = (),
        wait: bool = True,
        tries: int = TRIES,
        **options: Any,
    ) -> Node:
        """Add a node.

        hide: folders that it does not see. wait: until it runs. options: for `ray start`.
        """
        fields = {"address": self.gcs, "num-cpus": cpus, **options}
        node = Node(self, len(self.others) + 2, self._start(fields, len(self.others) + 2), hide)
        self.others.append(node)
        # A raylet that joins a head which has just started can hang.
        if wait and not node.came():
            assert tries > 1, f"no node started at {node.address}: {node.tail()}"
            self.others.pop()
            return self.add(cpus, hide, wait, tries - 1, **options)
        return node

    def revive_head(self) -> Node:
        """Replace a dead head: with Redis the cluster continues, without it a new one starts."""
        assert not self.head.alive
        # Without namespaces all nodes share this folder.
        (self.temporary / "ray_current_cluster").unlink(missing_ok=True)
        self.head = self._new_head()
        return self.head

    def close(self) -> None:
        """End all nodes, newest first."""
        for node in (*reversed(self.others), self.head):
            if node.alive:
                node.kill()
        if self.redis is not None:
            self.redis.kill()
            self.redis.wait()
        if namespaces():
            _ip("link", "del", "br0")
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _new_head(self, tries: int = TRIES) -> Node:
        """Start a head at the first address."""
        fields = {
            "port": self.gcs_port,
            "num-cpus": self.options["head_cpus"],
            "include-dashboard": str(self.options["dashboard"]).lower(),
            "dashboard-host": self.address(1),
            "dashboard-port": self.dashboard_port,
            "temp-dir": self.temporary,
        }
        if "redis_password" in self.options:
            fields["redis-password"] = self.options["redis_password"]
        if not namespaces():
            fields["ray-client-server-port"] = free_port()
        head = Node(self, 1, [*self._start(fields, 1), "--head"])
        if head.came():
            return head
        assert tries > 1, f"no head started: {head.tail()}"
        return self._new_head(tries - 1)

    def _start(self, options: Mapping[str, Any], number: int) -> list[str]:
        """Return the command that starts Ray at an address."""
        own = {
            "node-ip-address": self.address(number),
            "object-store-memory": self.store,
            **options,
        }
        return [
            *RAY,
            "start",
            "--block",
            "--disable-usage-stats",
            *(f"--{name}={value}" for name, value in own.items()),
        ]

    def _start_redis(self) -> None:
        """Start the Redis that stores the head's state, with a password and only in memory."""
        if shutil.which("redis-server") is None:
            raise FileNotFoundError("redis-server is missing: install Redis, or run without it")
        where, port, password = (
            (f"{NET}.{US}", 6380, secrets.token_hex(16))
            if namespaces()
            else ("127.0.0.1", free_port(), "p")
        )
        settings = {
            "bind": where,
            "port": port,
            "requirepass": password,
            "save": '""',
            "dir": self.folder,
            "daemonize": "no",
        }
        (self.folder / "redis.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in settings.items())
        )
        with (self.folder / "redis.log").open("ab") as out:
            words = ["redis-server", str(self.folder / "redis.conf")]
            self.redis = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=_die
            )
        self.options["redis_password"] = password
        self.environment |= {
            "RAY_REDIS_ADDRESS": f"{where}:{port}",
            "RAY_external_storage_namespace": "xcray-test",
        }


@contextmanager
def nodes(
    folder: Path,
    *,
    head_cpus: int = 0,
    dashboard: bool = False,
    redis: bool = False,
    quick: bool = True,
    patient: bool = False,
    store: int = STORE,
) -> Iterator[Nodes]:
    """Run a Ray cluster with its head; all of it ends with the block.

    folder: a short path, for sockets. dashboard: Ray jobs need it. redis: the state of the head
    outlives it. quick: a silent node counts as dead after 2 s instead of 13. patient: only a dead
    node is noticed as fast, a silent one after 30 s. store: bytes of each object store.
    """
    ray = Nodes(
        folder,
        dashboard=dashboard,
        redis=redis,
        quick=quick,
        patient=patient,
        store=store,
        head_cpus=head_cpus,
    )
    try:
        yield ray
    finally:
        ray.close()


def _ip(*words: str) -> str:
    """Run a command of iproute2 and return its output."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _only_child(pid: int) -> int:
    """Return the child of a process; 0 while there is none."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        result = file.read().split()
    return int(result[0]) if result else 0


def _title(pid: int, word: str) -> bool:
    """Return whether the command line of a process begins with a match of a pattern."""
    try:
        return re.match(word.encode(), Path(f"/proc/{pid}/cmdline").read_bytes()) is not None
    except OSError:  # the process has ended
        return False


def _elsewhere(pid: int) -> bool:
    """Return whether a process has its own network."""
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def _die() -> None:
    """Let the kernel end this child process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL if namespaces() else signal.SIGTERM)
