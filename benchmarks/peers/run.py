"""Running one training in a process of its own, on one core, with a limit of time; and keeping what
came out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("worker.py")
ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON")
}


def command(task: dict[str, Any], python: Path, file: Path) -> list[str]:
    """How a task is run: xcray and scikit-learn's LIBLINEAR by this Python, the others by that of
    their environment.
    """
    if task["peer"].startswith("xcray"):
        return [sys.executable, "-m", "benchmarks.peers.xcray_task", str(file)]
    chosen = sys.executable if task["package"] == "sklearn" else str(python)
    return [
        chosen,
        "-P",
        str(WORKER),
        str(file),
    ]  # -P: the names beside the worker must not hide libraries


def run(task: dict[str, Any], python: Path, limit: float) -> dict[str, Any]:
    """One run: what the worker says of itself, and its answers under "top"; or {"failed": why}."""
    with tempfile.TemporaryDirectory(prefix="xcray-peer-") as scratch:
        place = Path(scratch)
        whole = {
            **task,
            "scratch": scratch,
            "top": str(place / "top.npy"),
            "top_sample": str(place / "sample.npy"),
        }
        (place / "task.json").write_text(json.dumps(whole))
        try:
            done = subprocess.run(
                command(task, python, place / "task.json"),
                capture_output=True,
                text=True,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD},
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"did not end within {limit:.0f} s"}
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return {"failed": (lines or [f"ended with {done.returncode}"])[-1][:200]}
        return {**json.loads(done.stdout.splitlines()[-1]), **answers(place)}


def answers(place: Path) -> dict[str, Any]:
    """The arrays of answers a worker left, as lists: they go into the file of the run."""
    found = {"top": place / "top.npy", "top_sample": place / "sample.npy"}
    return {name: np.load(path).tolist() for name, path in found.items() if path.exists()}


def cached(
    task: dict[str, Any], python: Path, limit: float, file: Path, again: bool
) -> dict[str, Any]:
    """The run kept in `file`, if it is of the same task and not wanted again; else run now and keep
    it.
    """
    wanted = {name: value for name, value in task.items() if name not in ("core",)}
    if file.exists() and not again:
        kept: dict[str, Any] = json.loads(file.read_text())
        if kept["task"] == wanted and "failed" not in kept:
            return kept
    kept = {"task": wanted, "load": os.getloadavg()[0], **run(task, python, limit)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept))
    return kept


def default_core() -> int | None:
    """The last core this process may use; None where the system does not tell."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
