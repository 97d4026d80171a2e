"""`xcray doctor`: check this machine and report a fix for each problem."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from xcray.cli.terminal import output
from xcray.system.cores import available_cores
from xcray.system.memory import available_bytes

# name of the check, libraries, status if one is missing, and the fix. Prediction and training on
# threads need the first check only.
LIBRARIES = (
    (
        "libraries",
        ("numpy", "numba", "pyarrow", "typer", "rich"),
        "fail",
        "reinstall: pip install xcray",
    ),
    (
        "service",
        ("fastapi", "uvicorn", "SQLAlchemy", "httpx"),
        "warn",
        "only needed if used: pip install 'xcray[serve]'",
    ),
    (
        "scikit-learn",
        ("scikit-learn", "scipy"),
        "warn",
        "only needed if used: pip install 'xcray[sklearn]'",
    ),
    ("ray", ("ray",), "warn", "only needed for --pool ray: pip install 'xcray[ray]'"),
)
GB = 1e9


class Check(NamedTuple):
    """One line of the report. status: ok, warn or fail; fix: the remedy, empty if ok."""

    name: str
    status: str
    found: str
    fix: str = ""


def grade(name: str, enough: bool, found: str, fix: str) -> Check:
    """Return ok if there is enough, else a warning with its fix."""
    return Check(name, "ok", found) if enough else Check(name, "warn", found, fix)


def check_python() -> Check:
    """Report the Python version."""
    return Check(
        "python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    )


def check_libraries(name: str, libraries: Sequence[str], missing_is: str, fix: str) -> Check:
    """Check that libraries are installed, without importing them."""
    versions = {library: version_of(library) for library in libraries}
    missing = [library for library, number in versions.items() if number is None]
    if missing:
        return Check(name, missing_is, f"not installed: {', '.join(missing)}", fix)
    return Check(name, "ok", ", ".join(f"{each} {number}" for each, number in versions.items()))


def version_of(distribution: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_cores() -> Check:
    """Check for more than one core."""
    n = available_cores()
    return grade("cores", n > 1, str(n), "trainings solve one label at a time; use more cores")


def check_memory() -> Check:
    """Check for at least 2 GB of free memory."""
    free = min(available_bytes().values(), default=None)
    if free is None:
        return Check(
            "memory",
            "warn",
            "unknown",
            "the system does not report it; 2 GB of free memory are recommended",
        )
    return grade(
        "memory",
        free >= 2 * GB,
        f"{free / GB:.1f} GB free",
        "close other programs; a local Ray needs about 1 GB",
    )


def check_shared_memory() -> Check:
    """Check /dev/shm, which holds the objects of Ray."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return Check("shared memory", "ok", "not used by this system")
    free = shutil.disk_usage(place).free
    fix = "Ray falls back to slow files: give /dev/shm 1 GB (docker run --shm-size=1g)"
    return grade("shared memory", free >= 0.5 * GB, f"{free / GB:.1f} GB free", fix)


def check_disk(home: Path) -> Check:
    """Check free space and write permission of the home directory."""
    place = next(
        path for path in (home, *home.parents) if os.path.exists(path)
    )  # Path.exists raises without permission
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK | os.X_OK):
        return Check(
            "disk",
            "fail",
            f"{home} cannot be written",
            "choose another: xcray serve --home DIR, or XCRAY_HOME=DIR",
        )
    fix = "the service rejects uploads below 2 GB: free disk space, or choose another --home"
    return grade("disk", free >= 3 * GB, f"{free / GB:.0f} GB free at {home}", fix)


def check_kernel_cache() -> Check:
    """Check that numba can store compiled kernels; otherwise each process compiles them again."""
    from xcray import kernels

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    source = Path(kernels.__file__).parent
    place = Path(chosen) if chosen else source
    existing = next(path for path in (place, *place.parents) if path.exists())
    if os.access(existing, os.W_OK):
        baked, missed = os.environ.get("XCRAY_KERNELS"), len(kernels.unbaked_kernels())
        detail = (
            f", from {baked}" + (f", and {missed} compiled here" if missed else "") if baked else ""
        )
        return Check("kernel cache", "ok", f"{place}{detail}")
    fix = "each process compiles for a minute: set NUMBA_CACHE_DIR to a writable directory"
    fallback = not chosen and os.access(Path.home(), os.W_OK)  # numba's own second choice
    return grade("kernel cache", fallback, f"{place} cannot be written", fix)


def check_port(port: int) -> Check:
    """Check that the port of the service is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return Check(
                "port",
                "warn",
                f"{port} is in use",
                "another process listens there (xcray serve?); use xcray serve --port 0",
            )
    return Check("port", "ok", f"{port} is free")


def check_training() -> Check:
    """Run a small training and a prediction."""
    from numba.core import event

    from xcray.data.build import BuildOptions, build
    from xcray.kernels.compilation import CompilationCount
    from xcray.training import TrainSpec, train

    with tempfile.TemporaryDirectory(prefix="xcray-doctor-") as folder:
        place = Path(folder)
        options = BuildOptions.from_dict(
            {"synthetic": {"rows": 500, "features": 300, "labels": 50}}
        )
        build("synthetic", {}, place / "data", options)
        note = CompilationCount()
        started = time.monotonic()
        with event.install_listener("numba:compile", note):
            result = train(
                TrainSpec(dataset=str(place / "data")), run_dir=place / "run", out=place / "model"
            )
        seconds = time.monotonic() - started
    compiled = f", {note.seconds:.1f} of them to compile, once" if note.n_kernels else ""
    return grade(
        "training",
        seconds - note.seconds < 30,
        f"{seconds:.1f} s{compiled}, for 500 rows and 50 labels, model {result.sha256[:8]}",
        "slow: other programs use the CPU; try again",
    )


def run_check(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; return its result, or its failure."""
    try:
        return check()
    except Exception as error:
        return Check(
            name,
            "fail",
            f"{type(error).__name__}: {error}",
            "this is a bug; please report it with the output of xcray doctor --json",
        )


def doctor(
    home: Annotated[
        Path, typer.Option(envvar="XCRAY_HOME", help="Home directory of the service.")
    ] = Path("~/.xcray"),
    port: Annotated[int, typer.Option(envvar="XCRAY_PORT", help="Port of the service.")] = 8000,
) -> None:
    """Check this machine: one line per check, with a fix. Exits with 1 if a check failed."""
    checks = [
        check_python(),
        *(check_libraries(*each) for each in LIBRARIES),
        check_cores(),
        check_memory(),
        check_shared_memory(),
        check_disk(home.expanduser()),
        run_check("kernel cache", check_kernel_cache),
        check_port(port),
    ]
    for check in checks:
        print_check(check)
    checks.append(run_check("training", check_training))
    failed = any(check.status == "fail" for check in checks)
    output.print_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
    print_check(checks[-1])
    raise typer.Exit(output.FAILURE if failed else output.OK)


def print_check(check: Check) -> None:
    """Print one check and its fix."""
    output.print_line(f"{check.status:<4}  {check.name:<13}  {check.found}")
    if check.fix:
        output.print_line(f"{'':<21}{check.fix}")
