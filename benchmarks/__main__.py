"""Run the benchmarks that need no data: `python -m benchmarks [--quick]`.

Each one prints its JSON as its last line.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

QUICK: Final = (  # with --quick, seconds each
    "cluster.driver_cost",
    "cluster.growth",
    "cluster.schedule",
    "data.shapes",
    "indexed_bcd",
    "least_squares",
    "least_squares.text",
    "memoir.oracles",
    "multinomial",
    "peers",
    "peers.paired",
    "search",
    "soak.corruption",
    "text",
    "text.zero_shot",
    "training.auto",
    "training.certificates",
    "training.estimates",
    "training.sparsification",
    "training.thresholds",
)
LONGER: Final = (  # with --quick, up to a minute each
    "full_size",
    "indexed_bcd.memory",
    "memoir",
    "memoir.paper",
    "peers.accuracy",
    "serving",
    "serving.shards",
    "soak",
    "training.corrections",
    "training.updates",
)


def main() -> int:
    """Run the benchmarks one after the other, and stop at the first failure."""
    for name in (*QUICK, *LONGER):
        command = ["-m", f"benchmarks.{name}", *sys.argv[1:]]
        print("== python", *command, flush=True)
        subprocess.run([sys.executable, *command], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
