"""Joining a Ray, and a Ray of one's own for the length of a `with`. Nothing here starts anything that outlives its process.

Ray keeps its settings in the environment and caches them, so they are set here for the process and put back after.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from xcray.errors import Unavailable

LONGEST_ROOT: Final = 30  # characters: Ray adds 70 to it for its sockets, whose paths may have 107
TOKEN_HEADER: Final = "Authorization"
NAMESPACE: Final = "xcray"
AUTO: Final = "auto"  # the cluster that a process is in
STARTS: Final = 3  # tries to start a Ray that is slow to come
SLOW: Final = "timed out during startup"  # Ray's own words when a node was not up within thirty seconds, which can't be changed
T = TypeVar("T")
QUIET_PORTS: Final = range(20_000, 30_000)
_PORTS: Final = count(secrets.randbelow(len(QUIET_PORTS)))
_DIRECT: Final = urllib.request.build_opener(
    urllib.request.ProxyHandler({})
)  # a cluster is never behind a proxy


def auth_environment(token_path: Path | str) -> dict[str, str]:
    """Settings that make Ray ask for, and send, the token in a file. The token itself is never in the environment."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}


def own_environment(token_path: Path | str) -> dict[str, str]:
    """Settings of a Ray that xcray starts: token, no usage report, no killing of small actors for other programs' memory."""
    return {
        **auth_environment(token_path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # the monitor is node-wide: another program's memory gets our actors killed
        "RAY_free_objects_period_milliseconds": "100",  # it is 1000: blocks that go round would pile up, a second's worth a node
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def write_token(path: Path) -> None:
    """Make a token of 256 random bits in a file that only its owner reads."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(secrets.token_hex(32))


def short_root() -> Path:
    """A new directory of mode 0700 whose path is short enough for Ray's sockets. Raises Unavailable when there is none."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(parent) + 12 <= LONGEST_ROOT and os.path.isdir(parent):
            return Path(tempfile.mkdtemp(prefix="xr-", dir=parent))
    raise Unavailable(
        f"the temporary folder {tempfile.gettempdir()} has too long a path for Ray's sockets: set TMPDIR to a shorter one"
    )


def free_port() -> int:
    """A port of the loopback interface that is free now, another one with each call.

    It is not one of those that the system deals out to whoever names none: Ray takes a dozen of them before it comes to the one
    that it was told, which now and then would be gone by then.
    """
    for port in (QUIET_PORTS[next(_PORTS) % len(QUIET_PORTS)] for _ in QUIET_PORTS):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Unavailable(
        f"no port from {QUIET_PORTS[0]} to {QUIET_PORTS[-1]} is free on this machine: what holds them all?"
    )


def reachable(address: str, seconds: float = 5.0) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except (OSError, ValueError):
        return False
    return True


def check_dashboard(url: str, headers: Mapping[str, str], seconds: float = 5.0) -> None:
    """Raise Unavailable unless the dashboard at `url` lets us in and finds its head healthy; each answer may take so long."""
    for place in ("/api/version", "/api/gcs_healthz"):
        request = urllib.request.Request(url.rstrip("/") + place, headers=dict(headers))
        try:
            with _DIRECT.open(request, timeout=seconds):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):
                why = f"Ray's dashboard at {url} refuses our token: does XCRAY_RAY_TOKEN_PATH name the cluster's own?"
                raise Unavailable(why, code="RAY_REFUSED") from None
            why = f"Ray's dashboard at {url} answers, but says {error.code}: is its head healthy?"
            raise Unavailable(why, code="RAY_UNREACHABLE") from None
        except (OSError, http.client.HTTPException) as error:
            why = f"Ray's dashboard at {url} does not answer ({type(error).__name__}): jobs are submitted there; is it up?"
            raise Unavailable(why, code="RAY_UNREACHABLE") from error


@contextlib.contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables set (None: removed) for the length of a block; Ray's caches follow, before and after."""
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
    """Make this process a driver of the Ray at `address` for the length of a block; the Ray itself lives on.

    `address`: "host:port", or "auto" for the cluster that this process is in: RAY_ADDRESS says where, as in all pods of KubeRay and
    in all Ray jobs, or else what `ray start` noted on this machine.
    `token_path` is the file with the cluster's token; without it RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH of the environment hold.
    `more` goes to `ray.init`. Raises Unavailable when nothing answers there, or when it refuses the token.
    """
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or AUTO
    if address != AUTO and not reachable(address):
        raise Unavailable(
            f"no Ray answers at {address}: start one, or use the pool 'threads'",
            code="RAY_UNREACHABLE",
        )
    ray = load_ray()
    with environment({**(auth_environment(token_path) if token_path else {}), **_left_behind()}):
        try:
            with _our_signals():
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
                f"the Ray at {address} did not let us in: {cause}", code="RAY_REFUSED"
            ) from error
        try:
            yield address
        finally:
            ray.shutdown()


@contextlib.contextmanager
def local_ray(
    num_cpus: int = 2, object_store_memory: int = 256 << 20, dashboard: bool = False
) -> Iterator[str]:
    """A Ray of this process's own, ended with the block together with its temporary folder; gives its "host:port".

    `object_store_memory` in bytes. It joins no cluster that it finds and leaves Ray's default folder alone.
    Raises Unavailable when Ray is not installed or does not start.
    """
    ray = load_ray()
    root = short_root()
    write_token(root / "token")
    settings = {
        **own_environment(root / "token"),
        "RAY_ADDRESS": None,
        "RAY_TMPDIR": None,
        **_left_behind(),
    }
    with environment(settings):
        try:
            with _our_signals():
                context = patiently(
                    lambda: ray.init(
                        address="local",
                        namespace=NAMESPACE,
                        num_cpus=num_cpus,
                        object_store_memory=object_store_memory,
                        include_dashboard=dashboard,
                        dashboard_host="127.0.0.1",
                        dashboard_port=free_port(),
                        log_to_driver=False,
                        logging_level="WARNING",
                        _temp_dir=str(root / "r"),
                    )
                )
            yield str(context.address_info["address"])
        finally:
            ray.shutdown()
            shutil.rmtree(root, ignore_errors=True)


def patiently(start: Callable[[], T]) -> T:
    """What `start` gives, which begins a node of Ray in this process. One that was not up in the time that Ray allows, as on a
    machine that is busy with other things, is ended and begun again, STARTS times in all. Raises Unavailable, and what Ray does.
    """
    for left in reversed(range(STARTS)):
        try:
            return start()
        except Exception as error:  # Ray has no closer class for it
            if SLOW not in str(error):
                raise
            _end_half_started(error)
            if not left:
                why = f"Ray was not up in the thirty seconds that it allows itself, {STARTS} times: is the machine busy? Try again"
                raise Unavailable(why, code="RAY_START") from error
    raise AssertionError("the last try returns or raises")


def _end_half_started(error: BaseException) -> None:
    """End the processes of the node whose start raised this: nobody else knows of them, and they would live as long as we do."""
    trace = error.__traceback__
    while trace is not None:
        node: Any = trace.tb_frame.f_locals.get("self")
        if type(node).__module__ == "ray._private.node":
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            return
        trace = trace.tb_next


def _left_behind() -> dict[str, str | None]:
    """Variables that ray.init sets and ray.shutdown forgets, with their present values."""
    return {"PYTHONBREAKPOINT": os.environ.get("PYTHONBREAKPOINT")}


def load_ray() -> Any:
    """The module `ray`. Raises Unavailable with the command that installs it."""
    try:
        import ray
    except ImportError:
        raise Unavailable(
            "this needs Ray: pip install 'xcray[ray]', or use the pool 'threads'", code="NO_RAY"
        ) from None
    return ray


@contextlib.contextmanager
def _our_signals() -> Iterator[None]:
    """Keep this process's SIGTERM handler: ray.init puts its own in its place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
