"""Instructions and cache misses per query, counted by valgrind.

It works where the hardware counters of the machine are not available.

`python -m benchmarks.search.instructions [--models DIR --only NAME] [--k 5] [--queries 100]` runs
an engine under `valgrind --tool=cachegrind` twice, without queries and with many. The difference is
the cost of the queries. Kernels are compiled for AVX2 here, the widest set that valgrind supports,
so a machine with wider registers needs fewer instructions. Code without a name belongs to the
kernels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from benchmarks.common import arguments, in_folder
from benchmarks.search.models import row, subjects
from xcray.arrays import csr_from
from xcray.index.inverted import InvertedIndex
from xcray.model.model import Model
from xcray.predict import Predictor

MACHINE = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+f16c,+movbe",
}
LINE = 64  # bytes per cache line
WARM = 3


def child(model: str, queries: str, engine: str, k: int, n: int) -> None:
    """Answer the first queries to compile and fill caches, then n more."""
    X = csr_from(sp.load_npz(queries))
    opened = Model.open(model, verify=False)
    chosen: Any = (
        Predictor(opened).index
        if engine == "search"
        else InvertedIndex(opened.W, opened.postings, opened.b)
    )
    rows = [row(X, i) for i in range(X.n_rows)]
    for x in rows[:WARM] + rows[WARM : WARM + n]:
        chosen.query(x, k)


def counted(task: list[str], n: int, folder: Path) -> dict[str, float]:
    """Return the sums of cachegrind's events over a run with n queries.

    "kernels" are the instructions of code without a name.
    """
    command = [sys.executable, "-m", "benchmarks.search.instructions", "--child", *task, str(n)]
    environment = {**os.environ, **MACHINE, "NUMBA_CACHE_DIR": str(folder / "cache")}
    subprocess.run(command, env=environment, check=True)  # compiles before the run under valgrind
    out = folder / f"{n}.out"
    watch = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--cachegrind-out-file={out}"]
    subprocess.run([*watch, *command], env=environment, check=True, capture_output=True)
    return sums(out.read_text().splitlines())


def sums(lines: list[str]) -> dict[str, float]:
    """Return the sums of a cachegrind file."""
    events, unnamed, kernels, total = [""], False, 0, [0.0]
    for line in lines:
        if line.startswith("events:"):
            events = line.split()[1:]
        elif line.startswith("fn="):
            unnamed = line == "fn=???"
        elif unnamed and line[:1].isdigit():
            kernels += int(line.split()[1])
        elif line.startswith("summary:"):
            total = [float(part) for part in line.split()[1:]]
    return {**dict(zip(events, total, strict=True)), "kernels": float(kernels)}


def cost(task: list[str], n: int, folder: Path) -> dict[str, float]:
    """Return the cost of one query."""
    with_, without = counted(task, n, folder), counted(task, 0, folder)
    each = {name: (with_[name] - without[name]) / n for name in with_}
    return {
        "instructions": each["Ir"],
        "instructions_of_kernels": each["kernels"],
        "reads": each["Dr"],
        "writes": each["Dw"],
        "bytes_missing_first_cache": LINE * (each["D1mr"] + each["D1mw"]),
        "bytes_missing_last_cache": LINE * (each["DLmr"] + each["DLmw"]),
    }


def main() -> None:
    """Count for the search and the scan, and print the JSON."""
    if sys.argv[1:2] == ["--child"]:
        model, queries, engine, k, n = sys.argv[2:]
        child(model, queries, engine, int(k), int(n))
        return
    chosen = arguments(
        __doc__ or "",
        models={"type": Path, "help": "directory of NAME/model and NAME/dataset"},
        only={"nargs": "+", "help": "names of models in --models"},
        ks={"nargs": "+", "type": int, "default": [5]},
        queries={"type": int, "default": 100},
    )
    if shutil.which("valgrind") is None:
        raise SystemExit("counting needs valgrind, which is not installed")

    def run(folder: Path) -> dict[str, Any]:
        rows = []
        for subject in subjects(chosen.models, False, chosen.only, chosen.queries + WARM, folder):
            queries = folder / f"{subject.name}.npz"
            sp.save_npz(queries, subject.X.to_scipy())
            for k in chosen.ks:
                for engine in ("search", "scan"):
                    task = [str(subject.model.path), str(queries), engine, str(k)]
                    rows.append(
                        {
                            "model": subject.name,
                            "engine": engine,
                            "k": k,
                            **cost(task, subject.X.n_rows - WARM, folder),
                        }
                    )
                    print(rows[-1], flush=True)
        return {"benchmark": "search-instructions", "rows": rows}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
