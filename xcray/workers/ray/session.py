"""Sessions of Ray: joining a cluster, or an own Ray for the length of a `with` block.

Nothing here starts anything that outlives its process. Ray reads its settings from the environment
and caches them, so they are set here for the process and restored after.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from xcray.errors import Unavailable
from xcray.workers.ray.token import auth_environment, write_token

# Characters: Ray adds 70 to it for its sockets, whose paths are limited to 107.
MAX_ROOT_LENGTH: Final = 30
NAMESPACE: Final = "xcray"
AUTO: Final = "auto"  # the cluster of this process
START_SECONDS: Final = 180.0  # that a Ray can take to start, as on a busy machine
# Part of Ray's message if a node was not up in time.
SLOW_START_TEXT: Final = "timed out during startup"
AGENT_PORTS: Final = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
T = TypeVar("T")
PRIVATE_PORTS: Final = range(20_000, 30_000)
MAX_TENS: Final = 50
# a cluster is never behind a proxy
_NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def local_ray_environment(token_path: Path | str) -> dict[str, str]:
    """Return settings of a Ray that xcray starts: token, no usage report, no memory monitor."""
    return {
        **auth_environment(token_path),
        "RAY_USAGE_STATS_ENABLED": "0",
        # The monitor is node-wide: memory of other programs would get xcray's actors killed.
        "RAY_memory_monitor_refresh_ms": "0",
        # The default 1000 would keep a second's worth of rotating blocks per node.
        "RAY_free_objects_period_milliseconds": "100",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # that a node waits for its agents: with the default 30000 it ends on a busy machine
        "RAY_agent_register_timeout_ms": "600000",
    }


def make_short_root() -> Path:
    """Create a directory of mode 0700 with a path short enough for Ray's sockets.

    Raises Unavailable if all temporary folders have longer paths.
    """
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(parent) + 12 <= MAX_ROOT_LENGTH and os.path.isdir(parent):
            return Path(tempfile.mkdtemp(prefix="xr-", dir=parent))
    raise Unavailable(
        f"the path of the temporary folder {tempfile.gettempdir()} is too long for Ray's sockets: "
        "set TMPDIR to a shorter one"
    )


def free_port() -> int:
    """Return a port of the loopback interface that is free now, another one with each call.

    The port is outside of the ephemeral range: Ray opens a dozen ephemeral ports before it comes to
    the one that it was given, which could be taken by then.
    """
    with _PORTS_LOCK:
        for port in islice(_PORTS, len(PRIVATE_PORTS)):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise Unavailable(
        f"no port from {PRIVATE_PORTS[0]} to {PRIVATE_PORTS[-1]} is free on this machine: "
        "which process holds them all?"
    )


def _own_ports() -> Iterator[int]:
    """Yield ports that no other process gives out while this one lives.

    Of each ten the first is bound by the process that gives out the others: a node of Ray ends if a
    port of its agents is taken before they start. After MAX_TENS the same ports come again.
    """
    own = list[range]()
    for first in secrets.SystemRandom().sample(PRIVATE_PORTS[::10], len(PRIVATE_PORTS) // 10):
        if len(own) == MAX_TENS:
            break
        with socket.socket() as holder, contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", first))
            holder.detach()  # it stays open
            own.append(range(first + 1, first + 10))
            yield from own[-1]
    yield from cycle(chain(*own))


_PORTS: Final = _own_ports()
_PORTS_LOCK: Final = threading.Lock()


def takes_jobs(temporary: Path) -> bool:
    """Return whether the agent that takes jobs is up at a node with this temporary folder."""
    return any(temporary.glob("session_*/dashboard_agent_listen_port_*"))


def is_reachable(address: str) -> bool:
    """Return whether a process listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError):
        return False
    return True


def check_dashboard(url: str, headers: Mapping[str, str], seconds: float = 5.0) -> None:
    """Raise Unavailable unless the dashboard at `url` accepts `headers` and its head is healthy.

    seconds: timeout of each request.
    """
    for place in ("/api/version", "/api/gcs_healthz"):
        request = urllib.request.Request(url.rstrip("/") + place, headers=dict(headers))
        try:
            with _NO_PROXY.open(request, timeout=seconds):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                why = (
                    f"Ray's dashboard at {url} refuses our token: "
                    "is XCRAY_RAY_TOKEN_PATH the file of the cluster's own token?"
                )
                raise Unavailable(why, code="RAY_REFUSED") from None
            why = f"Ray's dashboard at {url} answers with status {error.code}: is its head healthy?"
            raise Unavailable(why, code="RAY_UNREACHABLE") from None
        except (OSError, http.client.HTTPException) as error:
            why = (
                f"Ray's dashboard at {url} does not answer ({type(error).__name__}): "
                "jobs are submitted there; is it up?"
            )
            raise Unavailable(why, code="RAY_UNREACHABLE") from error


@contextlib.contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: remove) for a block; Ray's caches follow."""
    before = {name: os.environ.get(name) for name in changes}
    set_environment(changes)
    try:
        yield
    finally:
        set_environment(before)


def set_environment(changes: Mapping[str, str | None]) -> None:
    """Set environment variables (None: remove) and make a loaded Ray read them again."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if "ray._raylet" in sys.modules:
        raylet: Any = sys.modules["ray._raylet"]
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def connect(
    address: str, *, token_path: Path | str | None = None, namespace: str = NAMESPACE, **more: Any
) -> Iterator[str]:
    """Make this process a driver of the Ray at `address` for a block; the Ray itself lives on.

    address: "host:port", or "auto" for the cluster that this process is in: RAY_ADDRESS if set,
    as in all pods of KubeRay and in all Ray jobs, or else what `ray start` recorded on this
    machine.
    token_path: file with the cluster's token; by default RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH of
    the environment are used. more: arguments of `ray.init`. Raises Unavailable if nothing answers
    there, or if it refuses the token.
    """
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or AUTO
    if address != AUTO and not is_reachable(address):
        raise Unavailable(
            f"no Ray answers at {address}: start one, or use the pool 'threads'",
            code="RAY_UNREACHABLE",
        )
    ray = load_ray()
    with environment(
        {**(auth_environment(token_path) if token_path else {}), **_leaked_variables()}
    ):
        try:
            with _preserve_sigterm():
                ray.init(
                    address=address,
                    namespace=namespace,
                    log_to_driver=False,
                    logging_level="WARNING",
                    **more,
                )
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            cause = str(error).splitlines()[0]
            raise Unavailable(
                f"the Ray at {address} refused the connection: {cause}", code="RAY_REFUSED"
            ) from error
        try:
            yield address
        finally:
            ray.shutdown()


@contextlib.contextmanager
def local_ray(
    num_cpus: int = 2, object_store_memory: int | None = 256 << 20, dashboard: int | None = None
) -> Iterator[str]:
    """Start a Ray of this process, ended with the block; yield its "host:port".

    object_store_memory: in bytes; None for Ray's own choice, a share of the memory. dashboard: port
    of its dashboard on the loopback interface, None for none. Its temporary folder is removed at
    the end. It joins no other cluster and does not use Ray's default folder. Raises Unavailable if
    Ray is not installed or does not start.
    """
    ray = load_ray()
    root = make_short_root()
    write_token(root / "token")
    settings = {
        **local_ray_environment(root / "token"),
        "RAY_ADDRESS": None,
        "RAY_TMPDIR": None,
        **_leaked_variables(),
    }
    with environment(settings):
        try:
            # Ray's dashboard forks its parts from a server whose folder stays where TMPDIR was
            with _preserve_sigterm(), environment({"TMPDIR": str(root)}):
                context = start_node(
                    lambda: ray.init(
                        address="local",
                        namespace=NAMESPACE,
                        num_cpus=num_cpus,
                        object_store_memory=object_store_memory,
                        include_dashboard=dashboard is not None,
                        dashboard_host="127.0.0.1",
                        dashboard_port=dashboard or free_port(),
                        log_to_driver=False,
                        logging_level="WARNING",
                        _temp_dir=str(root / "r"),
                    )
                )
            yield str(context.address_info["address"])
        finally:
            ray.shutdown()
            shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def patient_start() -> Iterator[None]:
    """Give a node of Ray started in the block START_SECONDS to answer, instead of Ray's thirty.

    Ray's limit is not a setting. It is checked when a query for the node has raised RuntimeError.
    The ports of the node's agents are given: Ray ends a node whose agents do not name theirs within
    fifteen seconds. A dashboard that is not up within sixty is left behind.
    """
    # tests fail if a release of Ray changes these
    from ray._private import ray_constants, services

    get_node: Any = services.get_node  # they have no type annotations
    start_raylet: Any = services.start_raylet
    start_process: Any = services.start_ray_process
    deadline = time.monotonic() + START_SECONDS

    def wait_for_node(address: str, node_id: str) -> Any:
        """Return the information of a node once it is registered."""
        while True:
            try:
                return get_node(address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def start_with_ports(*arguments: Any, **options: Any) -> Any:
        """Start a raylet whose agents have ports of their own."""
        return start_raylet(*arguments, **options | {name: free_port() for name in AGENT_PORTS})

    def start_with_flag(command: list[str], *arguments: Any, **options: Any) -> Any:
        """Start a process of Ray; a raylet gets the port that Ray gives to its agent only."""
        ports = re.findall(r"--listen-port=(\d+)", " ".join(command))
        flags = [f"--dashboard_agent_listen_port={port}" for port in ports]
        return start_process([*command, *flags], *arguments, **options)

    changes: list[tuple[Any, str, Any]] = [
        (services, "get_node", wait_for_node),
        (services, "start_raylet", start_with_ports),
        (services, "start_ray_process", start_with_flag),
        (ray_constants, "RAY_DASHBOARD_STARTUP_TIMEOUT_S", START_SECONDS),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def start_node(start: Callable[[], T]) -> T:
    """Return the result of `start`, which starts a node of Ray in this process.

    Raises Unavailable if the node is not up within START_SECONDS, and what Ray raises.
    """
    try:
        with patient_start():
            return start()
    # Ray has no more specific class
    except Exception as error:
        if SLOW_START_TEXT not in str(error):
            raise
        _end_half_started(error)
        why = f"Ray was not up within {START_SECONDS:.0f} s: is the machine busy? Try again"
        raise Unavailable(why, code="RAY_START") from error


def _end_half_started(error: BaseException) -> None:
    """End the processes of the node whose start raised this, which would live on otherwise."""
    trace = error.__traceback__
    while trace is not None:
        node: Any = trace.tb_frame.f_locals.get("self")
        if type(node).__module__ == "ray._private.node":
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            return
        trace = trace.tb_next


def _leaked_variables() -> dict[str, str | None]:
    """Return variables that ray.init sets and ray.shutdown leaves, with their current values."""
    return {"PYTHONBREAKPOINT": os.environ.get("PYTHONBREAKPOINT")}


def load_ray() -> Any:
    """Return the module `ray`. Raises Unavailable with the command that installs it."""
    try:
        import ray
    except ImportError:
        raise Unavailable(
            "this needs Ray: pip install 'xcray[ray]', or use the pool 'threads'", code="NO_RAY"
        ) from None
    return ray


@contextlib.contextmanager
def _preserve_sigterm() -> Iterator[None]:
    """Keep this process's SIGTERM handler, which ray.init replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


if __name__ == "__main__":  # the command `ray`, with a patient start
    with patient_start():
        from ray.scripts import scripts

        command: Any = scripts.main  # it has no type annotations
        command()
