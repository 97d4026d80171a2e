"""One training in a separate process, on one core, with a time limit; results are cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from xcray.solvers.ppdsparse import PPDSparseSolver

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("worker.py")
ONE_THREAD = {
    f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON")
}


def command(task: dict[str, Any], python: Path, file: Path) -> list[str]:
    """Return the command of a task.

    xcray and scikit-learn's LIBLINEAR run in this Python, the others in that of their environment.
    """
    if task["peer"].startswith("xcray"):
        return [sys.executable, "-m", "benchmarks.peers.xcray_task", str(file)]
    chosen = sys.executable if task["package"] == "sklearn" else str(python)
    return [
        chosen,
        "-P",
        str(WORKER),
        str(file),
    ]  # -P: the files next to the worker must not shadow libraries


def run(task: dict[str, Any], python: Path, limit: float) -> dict[str, Any]:
    """Run a task; return the worker's report and answers ("top"), or {"failed": reason}."""
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
            process = subprocess.run(
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
        if process.returncode != 0:
            lines = [line for line in process.stderr.splitlines() if line.strip()]
            return {"failed": (lines or [f"ended with {process.returncode}"])[-1][:200]}
        return {**json.loads(process.stdout.splitlines()[-1]), **answers(place)}


def answers(place: Path) -> dict[str, Any]:
    """Return the answers of a worker as lists, for the file of the run."""
    fields = {"top": place / "top.npy", "top_sample": place / "sample.npy"}
    return {name: np.load(path).tolist() for name, path in fields.items() if path.exists()}


def cached(
    task: dict[str, Any], python: Path, limit: float, file: Path, again: bool
) -> dict[str, Any]:
    """Return the run in `file` if it is of the same task, else run it and save the result.

    A run of xcray is of the same revision of its solver, which does not change if the same bits
    are computed faster. again: run even if the file exists.
    """
    entries = {name: value for name, value in task.items() if name not in ("core",)}
    if task["package"] == "xcray":
        entries["revision"] = PPDSparseSolver.revision
    if file.exists() and not again:
        document: dict[str, Any] = json.loads(file.read_text())
        if document["task"] == entries and "failed" not in document:
            return document
    document = {"task": entries, "load": os.getloadavg()[0], **run(task, python, limit)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document))
    return document


def default_core() -> int | None:
    """Return the last core this process can use, or None if the system does not report it."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
