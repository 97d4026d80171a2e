"""`xcray doctor`: what this machine can do, what is missing, and the mend for each."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from xcray.cli.terminal import output
from xcray.system.cores import cores

LIBRARIES = ("numpy", "numba", "pyarrow", "typer", "rich")
EXTRAS = {  # by what they are for: the extra, and its libraries
    "service": ("serve", ("fastapi", "uvicorn", "SQLAlchemy", "httpx")),
    "scikit-learn": ("sklearn", ("scikit-learn", "scipy")),
}
GB = 1e9


class Check(NamedTuple):
    """One line of the report. status: ok, warn or fail; mend: what to do, empty when all is well."""

    name: str
    status: str
    found: str
    mend: str = ""


def graded(name: str, enough: bool, found: str, mend: str) -> Check:
    """ok when there is enough, else a warning with its mend."""
    return Check(name, "ok", found) if enough else Check(name, "warn", found, mend)


def check_python() -> Check:
    """Which Python runs; an older one than 3.11 could not have read this file."""
    return Check(
        "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )


def check_libraries() -> Check:
    """The libraries xcray needs."""
    found = {name: version_of(name) for name in LIBRARIES}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        return Check(
            "libraries",
            "fail",
            f"missing: {', '.join(missing)}",
            "install again: pip install xcray",
        )
    return Check("libraries", "ok", ", ".join(f"{name} {number}" for name, number in found.items()))


def check_extra(name: str) -> Check:
    """The libraries of one extra, which predicting and training on threads do without."""
    extra, libraries = EXTRAS[name]
    found = {library: version_of(library) for library in libraries}
    missing = [library for library, number in found.items() if number is None]
    if missing:
        return Check(
            name,
            "warn",
            f"not installed: {', '.join(missing)}",
            f"only needed if used: pip install 'xcray[{extra}]'",
        )
    return Check(name, "ok", ", ".join(f"{library} {number}" for library, number in found.items()))


def version_of(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_ray() -> Check:
    """Ray can be imported (looked for, not imported: that takes seconds)."""
    found = version_of("ray")
    if found is None or importlib.util.find_spec("ray") is None:
        return Check(
            "ray", "warn", "not installed", "only needed for --pool ray: pip install 'xcray[ray]'"
        )
    return Check("ray", "ok", found)


def check_cores() -> Check:
    """More than one core."""
    n = cores()
    return graded("cores", n > 1, str(n), "trainings solve one class at a time; give it more cores")


def free_memory() -> float | None:
    """Bytes of memory that can be had, by the system and by the control group's limit; None when nobody says."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        found.append(float(lines.get("MemAvailable", "0 kB").split()[0]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        found.append(float(limit.read_text()) - float(used.read_text()))
    return min(found) if found else None


def check_memory() -> Check:
    """At least 2 GB free."""
    free = free_memory()
    if free is None:
        return Check(
            "memory", "warn", "unknown", "this system does not say; 2 GB free is a good start"
        )
    return graded(
        "memory",
        free >= 2 * GB,
        f"{free / GB:.1f} GB free",
        "close other programs; a local Ray alone needs about 1 GB",
    )


def check_shared_memory() -> Check:
    """Ray keeps its objects in /dev/shm."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return Check("shared memory", "ok", "not used by this system")
    free = shutil.disk_usage(place).free
    mend = "Ray falls back to slow files: give /dev/shm 1 GB (docker run --shm-size=1g)"
    return graded("shared memory", free >= 0.5 * GB, f"{free / GB:.1f} GB free", mend)


def check_disk(home: Path) -> Check:
    """Room and the right to write where xcray keeps things."""
    place = next(
        path for path in (home, *home.parents) if os.path.exists(path)
    )  # Path.exists raises where we may not look
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK | os.X_OK):
        return Check(
            "disk",
            "fail",
            f"{home} can't be written",
            "choose another: xcray serve --home DIR, or XCRAY_HOME=DIR",
        )
    mend = "the service refuses uploads below 2 GB: make room, or choose another --home"
    return graded("disk", free >= 3 * GB, f"{free / GB:.0f} GB free at {home}", mend)


def check_kernel_cache() -> Check:
    """numba can keep compiled kernels; without, each process compiles anew."""
    from xcray import kernels

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    source = Path(kernels.__file__).parent
    place = Path(chosen) if chosen else source
    existing = next(path for path in (place, *place.parents) if path.exists())
    if os.access(existing, os.W_OK):
        baked, missed = os.environ.get("XCRAY_KERNELS"), len(kernels.missed())
        told = (
            f", from {baked}" + (f", and {missed} compiled here" if missed else "") if baked else ""
        )
        return Check("kernel cache", "ok", f"{place}{told}")
    mend = "each process compiles for a minute: set NUMBA_CACHE_DIR to a writable folder"
    fallback = not chosen and os.access(Path.home(), os.W_OK)  # numba's own second choice
    return graded("kernel cache", fallback, f"{place} can't be written", mend)


def check_port(port: int) -> Check:
    """The service's port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return Check(
                "port",
                "warn",
                f"{port} is taken",
                "something listens there (xcray serve?); use xcray serve --port 0",
            )
    return Check("port", "ok", f"{port} is free")


def check_training() -> Check:
    """A small training, from rows to answers."""
    from xcray.data.build import BuildOptions, build
    from xcray.training import TrainSpec, train

    with tempfile.TemporaryDirectory(prefix="xcray-doctor-") as folder:
        place = Path(folder)
        options = BuildOptions.from_dict(
            {"synthetic": {"rows": 500, "features": 300, "labels": 50}}
        )
        build("synthetic", {}, place / "data", options)
        started = time.monotonic()
        result = train(
            TrainSpec(dataset=str(place / "data")), run_dir=place / "run", out=place / "model"
        )
        seconds = time.monotonic() - started
    found = f"{seconds:.1f} s for 500 rows and 50 labels, model {result.sha256[:8]}"
    return graded(
        "training",
        seconds < 30,
        found,
        "slow: other programs use the cores, or the kernels were compiled just now; try again",
    )


def tried(name: str, check: Callable[[], Check]) -> Check:
    """The check, or the failure it ended in."""
    try:
        return check()
    except Exception as error:
        return Check(
            name,
            "fail",
            f"{type(error).__name__}: {error}",
            "this should work; please report it with the output of xcray doctor --json",
        )


def doctor(
    home: Annotated[
        Path, typer.Option(envvar="XCRAY_HOME", help="The folder of the service.")
    ] = Path("~/.xcray"),
    port: Annotated[int, typer.Option(envvar="XCRAY_PORT", help="The port of the service.")] = 8000,
    json: output.AsJson = False,
) -> None:
    """Check this machine: one line a check with the mend. Ends with 1 when something must be mended."""
    extras = [*map(check_extra, EXTRAS), check_ray()]
    quick = [
        check_python(),
        check_libraries(),
        *extras,
        check_cores(),
        check_memory(),
        check_shared_memory(),
    ]
    checks = [
        *quick,
        check_disk(home.expanduser()),
        tried("kernel cache", check_kernel_cache),
        check_port(port),
    ]
    if not json:
        for check in checks:
            show(check)
    checks.append(tried("training", check_training))
    failed = any(check.status == "fail" for check in checks)
    if json:
        output.emit({"ok": not failed, "checks": [check._asdict() for check in checks]})
    else:
        show(checks[-1])
    raise typer.Exit(output.FAILURE if failed else output.OK)


def show(check: Check) -> None:
    """One line, and the mend below it."""
    output.say(f"{check.status:<4}  {check.name:<13}  {check.found}")
    if check.mend:
        output.say(f"{'':<21}{check.mend}")
