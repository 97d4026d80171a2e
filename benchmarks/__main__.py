"""Run the benchmarks that need no data: `python -m benchmarks [--quick]`; each prints its JSON as its last line."""

from __future__ import annotations

import argparse
import subprocess
import sys

QUICK = [
    ["benchmarks.quality", "--sets", "synthetic", "--repeats", "1"],
    ["benchmarks.balance", "--sets", "synthetic", "--workers", "2"],
    ["benchmarks.schedule", "--largest", "5000"],
    ["benchmarks.scaling", "--problems", "LSHTC1-large", "--nodes", "20"],
    ["benchmarks.search", "--queries", "200", "--repeats", "2", "--budget", "2"],
]
WHOLE = [
    ["benchmarks.quality", "--sets", "synthetic"],
    ["benchmarks.balance", "--sets", "pydocs"],
    ["benchmarks.schedule"],
    ["benchmarks.kills"],
    ["benchmarks.memory"],
    ["benchmarks.footprint"],
    ["benchmarks.shapes"],
    ["benchmarks.convergence", "--sets", "synthetic"],
    ["benchmarks.ancestor", "--sets", "synthetic"],
    ["benchmarks.path", "--sets", "synthetic", "--repeats", "1"],
    ["benchmarks.objective", "--sets", "synthetic"],
    ["benchmarks.mlr"],
    ["benchmarks.scaling"],
    ["benchmarks.search"],
    ["benchmarks.bulk"],
    ["benchmarks.search", "--equality", "20000"],
]


def main() -> int:
    """Run them one after the other; the first failure ends the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, one repeat")
    for command in QUICK if parser.parse_args().quick else WHOLE:
        print("==", " ".join(command), flush=True)
        subprocess.run([sys.executable, "-m", *command], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
