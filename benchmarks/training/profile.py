"""Shares of processor time by function of the PPDSparse kernel, measured by perf.

`python -m benchmarks.training.profile [--data DIR] [--sets bibtex cooking ...]`

Compiled kernels have no file that perf could read names from. So the profiled process compiles them
again and writes their addresses where perf looks for them (/tmp/perf-PID.map). Functions that the
compiler has inlined count for their callers. Needs the program `perf`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import dataset, run_benchmark
from benchmarks.peers.data import sample
from benchmarks.training.labels import SETS
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.kernels.training.ppdsparse.advance import advance
from xcray.solvers import make_solver

SECONDS = 5.0  # of solving, about
SAMPLES_PER_SECOND = 1999
FUNCTION = re.compile(r"\dxcray\d+kernels(?:\d+training)?((?:\d+[a-z_]+)+)B")
LAST_NAME = re.compile(r"\d+([a-z_]+)$")


def solve(place: str, labels: int) -> None:
    """Compile the kernels, write their addresses, and solve a sample of labels again and again."""
    data = Dataset.open(place)
    solver = make_solver("ppdsparse", {"C": 1.0})
    local = solver.load_dataset(data)
    chosen = frozen(sample(data.label_counts, labels), np.int32)
    first = solver.solve(local, chosen)
    write_addresses()
    seconds = float(first.records["work"].sum()) * 2e-9
    for _ in range(max(1, int(SECONDS / seconds))):
        solver.solve(local, chosen)


def write_addresses() -> None:
    """Write address, size and name of every compiled function for perf."""
    compiled = next(iter(advance.overloads.values())).library
    engine = compiled.codegen._engine._ee
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(compiled._get_compiled_object())
        file.flush()
        command = ["nm", "--print-size", "--defined-only", file.name]
        symbols = output_of(command)
    lines = [
        f"{address:x} {int(fields[1], 16):x} {fields[3]}\n"
        for fields in map(str.split, symbols.splitlines())
        if len(fields) == 4 and (address := engine.get_function_address(fields[3]))
    ]
    file_of_perf = Path(f"/tmp/perf-{os.getpid()}.map")
    file_of_perf.write_text("".join(lines))
    print(file_of_perf)


def output_of(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Return what a command prints."""
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def profile(name: str, place: Path, folder: Path) -> dict[str, Any]:
    """Return the shares of the kernel's functions on one set, and print them."""
    child = [sys.executable, "-m", "benchmarks.training.profile", "--child", str(place)]
    child += [str(SETS.get(name, 100))]
    record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_PER_SECOND)]
    data = str(folder / "perf.data")
    # kernels that are loaded from a cache have no symbols
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / f"kernels-{name}")}
    written = output_of([*record, "-o", data, "--", *child], environment)
    report = output_of(["perf", "report", "-i", data, "--stdio", "--sort", "symbol"])
    Path(written.split()[-1]).unlink()
    shares: dict[str, float] = defaultdict(float)
    for line in report.splitlines():
        found = FUNCTION.search(line)
        if found and line.lstrip()[0].isdigit():
            shares[LAST_NAME.search(found[1])[1]] += float(line.split("%")[0])  # type: ignore[index]
    total = sum(shares.values())
    row = {
        function: round(100 * share / total, 1)
        for function, share in sorted(shares.items(), key=lambda item: -item[1])
        if share > 0.005 * total
    }
    print(name, row, flush=True)
    return {"set": name, "shares": row}


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Profile every set."""
    place = options.cache or folder / "sets"
    names = options.sets or (list(SETS) if options.data else ["synthetic"])
    rows = [profile(name, dataset(name, options.data, place).path, folder) for name in names]
    return {"benchmark": "profile", "sets": rows}


def main() -> None:
    """Profile every set and print the JSON; or solve labels, as the profiled process."""
    if sys.argv[1:2] == ["--child"]:
        solve(sys.argv[2], int(sys.argv[3]))
        return
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"]},
        sets={"nargs": "+"},
        cache={"type": Path, "help": "directory of the data sets; default: a temporary one"},
    )


if __name__ == "__main__":
    main()
