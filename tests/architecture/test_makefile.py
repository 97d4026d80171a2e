"""The commands that the Makefile would run, and its error messages. Nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERBS = ("demo", "serve", "test", "drills", "check", "bench", "docs", "release", "clean")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with only the Makefile and pyproject.toml."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without MAKEFLAGS of an outer make.
    clean = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C",
    }
    return subprocess.run(
        ["make", *arguments], cwd=place, capture_output=True, text=True, check=False, env=clean
    )


def test_help_lists_every_verb(clone: Path) -> None:
    shown = make(clone).stdout
    assert [
        line.split()[0] for line in shown.splitlines()[1:-1] if line.split()[0] in VERBS
    ] == list(VERBS)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "clean"])
def test_each_verb_makes_the_environment_first(clone: Path, verb: str) -> None:
    planned = make(clone, "-n", verb).stdout
    assert planned.index("-m venv --clear .venv") < planned.index("pip install")
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".installed").touch()
    # The environment exists and is newer than pyproject.toml.
    assert "pip" not in make(clone, "-n", verb).stdout


def test_the_service_alone_is_installed_first_and_the_rest_when_needed(clone: Path) -> None:
    assert "'.[serve]'" in make(clone, "-n", "serve").stdout
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".installed-serve").touch()
    assert "pip" not in make(clone, "-n", "serve").stdout
    assert "'.[dev]'" in make(clone, "-n", "test").stdout


def test_checks_run_before_tests(clone: Path) -> None:
    planned = make(clone, "-n", "test").stdout
    assert planned.index("ruff check") < planned.index("mypy") < planned.index("pytest")
    # pytest is the last command, so its summary is the last output.
    assert planned.splitlines()[-1].strip().startswith(".venv/bin/python -m pytest ")


def test_an_old_python_is_rejected_with_the_fix(clone: Path) -> None:
    old = clone / "python3.8"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.10" && exit 0\nexit 1\n')
    old.chmod(0o755)
    process = make(clone, "check", f"PYTHON={old}")
    assert process.returncode != 0
    assert "needs Python 3.11 or newer" in process.stderr
    assert "Python 3.8.10" in process.stderr
    assert "make PYTHON=" in process.stderr
    assert not (clone / ".venv").exists()


def test_clean_removes_only_generated_files(clone: Path) -> None:
    for name in (
        "xcray/__pycache__",
        "tests",
        "benchmarks",
        "docs",
        "build/docs",
        ".mypy_cache",
        "data",
        ".venv/bin",
    ):
        (clone / name).mkdir(parents=True)
    (clone / ".venv" / ".installed").touch()
    assert make(clone, "clean").returncode == 0
    left = {path.name for path in clone.iterdir()}
    # The other files are kept, because make did not create them.
    assert left == {
        "Makefile",
        "pyproject.toml",
        "xcray",
        "tests",
        "benchmarks",
        "docs",
        "data",
        ".venv",
    }
    assert not (clone / ".venv" / ".installed").exists()
    assert list((clone / "xcray").iterdir()) == []
    (clone / ".venv" / ".made-by-make").touch()
    assert make(clone, "clean").returncode == 0
    assert not (clone / ".venv").exists()


def test_the_build_server_runs_the_same_targets() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    assert "make test || exit\nexec make drills\n" in (ROOT / ".ci" / "run").read_text()
