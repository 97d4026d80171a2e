"""The environment of the peers: a separate Python with pinned versions, created once.

It also lists the peers that are not available, with the reasons.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Collection
from pathlib import Path

# PECOS needs numpy < 2 and these versions; other dependencies are not installed (PECOS requires
# torch, but its linear models do not)
COMMON = (
    "numpy==1.26.4",
    "scipy==1.13.1",
    "scikit-learn==1.5.2",
    "joblib==1.4.2",
    "threadpoolctl==3.5.0",
)
PACKAGES = {
    "napkinxc": ("napkinxc==0.7.2",),
    "pecos": ("libpecos==1.2.8",),
    "omikuji": ("omikuji==0.5.2", "cffi==1.17.1", "pycparser==2.22"),
    "vowpalwabbit": ("vowpalwabbit==9.11.9",),
}
MODULES = {
    "napkinxc": "napkinxc.models",
    "pecos": "pecos.xmc.xlinear.model",
    "omikuji": "omikuji",
    "vowpalwabbit": "vowpalwabbit",
}
ABSENT = {"dismecpp": "not a Python package: give its program by --dismecpp"}
RESULT_FILE = "peers.json"
LISTED = ("napkinxc", "libpecos", "omikuji", "vowpalwabbit", "numpy")


def environment(folder: Path, packages: Collection[str]) -> tuple[Path, dict[str, str]]:
    """Return the environment's Python, and for each unusable package the reason.

    The environment is created if missing, unless none of `packages` needs one.
    """
    if not PACKAGES.keys() & packages:
        return Path(sys.executable), dict(ABSENT)
    python = folder / "bin" / "python"
    if (folder / RESULT_FILE).exists():
        return python, json.loads((folder / RESULT_FILE).read_text())
    print(f"creating the peers' environment in {folder}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    reasons = {
        name: install(python, COMMON + pins) or imported(python, MODULES[name])
        for name, pins in PACKAGES.items()
    }
    result = {name: reason for name, reason in reasons.items() if reason} | ABSENT
    (folder / RESULT_FILE).write_text(json.dumps(result))
    return python, result


def install(python: Path, pins: tuple[str, ...]) -> str:
    """Install exactly `pins`, from wheels or from source. Return an empty string or pip's error."""
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--prefer-binary",
        *pins,
    ]
    return complaint(command)


def imported(python: Path, module: str) -> str:
    """Import a module there. Return an empty string or the error."""
    return complaint([str(python), "-c", f"import {module}"])


def complaint(command: list[str]) -> str:
    """Run a command. Return an empty string or the last line of its error output."""
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    return "" if process.returncode == 0 else (lines or [f"ended with {process.returncode}"])[-1]


def versions(python: Path) -> dict[str, str]:
    """Return the versions of all packages of the peers, and of scikit-learn here."""
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    import sklearn

    results = {entry["name"]: entry["version"] for entry in json.loads(listed.stdout)}
    entries = {name: results[name] for name in LISTED if name in results}
    return {**entries, "scikit-learn": sklearn.__version__, "python": sys.version.split()[0]}
