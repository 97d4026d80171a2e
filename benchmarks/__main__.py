"""Run the benchmarks that need no data: `python -m benchmarks [--quick]`.

Each one prints its JSON as its last line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

QUICK = [
    ["benchmarks.training.quality", "--sets", "synthetic", "--repeats", "1"],
    ["benchmarks.training.balance", "--sets", "synthetic", "--workers", "2"],
    ["benchmarks.cluster.schedule", "--largest", "5000"],
    ["benchmarks.multinomial.scaling", "--problems", "LSHTC1-large", "--nodes", "20"],
    ["benchmarks.search", "--queries", "200", "--repeats", "2", "--budget", "2"],
]
WHOLE = [
    ["benchmarks.training.quality", "--sets", "synthetic"],
    ["benchmarks.training.balance", "--sets", "pydocs"],
    ["benchmarks.cluster.schedule"],
    ["benchmarks.training.kills"],
    ["benchmarks.training.memory"],
    ["benchmarks.serving.footprint"],
    ["benchmarks.data.shapes"],
    ["benchmarks.training.convergence", "--sets", "synthetic"],
    ["benchmarks.training.pdsparse", "--sets", "synthetic"],
    ["benchmarks.training.objective", "--sets", "synthetic"],
    ["benchmarks.multinomial"],
    ["benchmarks.multinomial.scaling"],
    ["benchmarks.search"],
    ["benchmarks.serving.batch"],
    ["benchmarks.search", "--equality", "20000"],
]


def main() -> int:
    """Run the benchmarks one after the other, and stop at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use small data and one repeat")
    for command in QUICK if parser.parse_args().quick else WHOLE:
        print("==", " ".join(command), flush=True)
        subprocess.run([sys.executable, "-m", *command], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
