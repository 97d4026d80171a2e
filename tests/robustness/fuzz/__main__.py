"""Run targets on many inputs, each target in a child with limits of memory and processor time.

The exit code is 1 if a target failed. hypothesis prints the smallest input that fails; the input of
a child that died is kept.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEMORY = 2 << 30  # bytes of address space beyond those at the start
SECONDS_PER_INPUT = 0.5  # of the processor, on average
MAX_SECONDS = 10.0  # of the processor, for one input


def main(arguments: list[str]) -> int:
    """Run the command with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000, help="of each target (default: 2000)")
    parser.add_argument("--target", action="append", help="one target (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    inputs = parser.parse_args(arguments)
    if inputs.child:
        try_inputs(inputs.target[0], inputs.inputs, inputs.seed, Path(inputs.child))
        return 0
    names = inputs.target or list(importlib.import_module("tests.robustness.fuzz.targets").TARGETS)
    failed = [name for name in names if run_child(name, inputs.inputs, inputs.seed)]
    return int(bool(failed))


def run_child(name: str, inputs: int, seed: int) -> bool:
    """Run one target in a child; say how it ended. Return whether it failed."""
    work = tempfile.mkdtemp(prefix=f"xcray-fuzz-{name}-")
    options = ["--target", name, "--inputs", str(inputs), "--seed", str(seed), "--child", work]
    command = [sys.executable, "-m", "tests.robustness.fuzz", *options]
    code = subprocess.run(command, check=False).returncode
    print(f"{name}: " + (f"exit code {code}, see {work}/current" if code else f"{inputs} inputs"))
    if not code:
        shutil.rmtree(work)
    return code != 0


def try_inputs(name: str, inputs: int, seed: int, work: Path) -> None:
    """Try inputs on a target within limits. Raises what escapes from it."""
    import hypothesis

    from tests.robustness.fuzz.inputs import mutated
    from tests.robustness.fuzz.targets import TARGETS

    target = TARGETS[name]
    for data in target.seeds:
        target.run(data, work)  # kernels are compiled before time and memory are limited
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY
    seconds = int(60 + inputs * SECONDS_PER_INPUT)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    def attempt(data: bytes) -> None:
        (work / "current").write_bytes(data)
        began = time.process_time()
        target.run(data, work)
        assert time.process_time() - began < MAX_SECONDS, "this input takes too long"

    settings = hypothesis.settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    value = hypothesis.given(mutated(target.seeds, target.words))
    hypothesis.seed(seed)(settings(value(attempt)))()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
