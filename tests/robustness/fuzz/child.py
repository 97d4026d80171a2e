"""One target in its own process: python -m tests.robustness.fuzz.child REQUEST.json.

Each input is written to WORK/current before it is tried, so that a crash can be reproduced. Inputs
that fail without killing the process are minimised and kept in FOLDER/failed. FOLDER/figures.json
is written every second.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import json
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import xcray.kernels

SECONDS = 10  # of the processor for one input; more is a hang, one that sleeps is seen by `command`
MEMORY = 2 << 30  # bytes of address space beyond those at the start
GROWTH = 400 << 20  # bytes of resident memory beyond those at the start


class Hang(BaseException):
    """One input took too long. It is not an Exception, so that no code under test catches it."""


class Trial:
    """Tries inputs on a target, and keeps the figures."""

    def __init__(self, target: Any, folder: Path, work: Path) -> None:
        self.target = target
        self.folder = folder
        self.work = work
        self.outcomes: Counter[str] = Counter()
        self.executions = 0
        self.failures = 0
        self.begun = time.monotonic()
        self.told = 0.0
        self.known: set[str] = set()  # kinds of failure seen: one input of each is kept
        (folder / "failed").mkdir(exist_ok=True)
        self.base = resident()

    def __call__(self, data: bytes) -> str | None:
        """What came of an input; None when it failed. A failure is kept, a smaller one that fails
        alike when there is one.
        """
        (self.work / "current").write_bytes(data)
        self.executions += 1
        outcome, failure = self._attempt(data)
        if failure is not None:
            self._keep(data, failure)
        elif outcome is not None:
            self.outcomes[outcome] += 1
        if time.monotonic() - self.told > 1:
            self.tell()
        return outcome

    def fails(self, data: bytes) -> str | None:
        """The kind of failure of an input, if it fails."""
        return self._attempt(data)[1]

    def tell(self) -> None:
        """Write the figures."""
        self.told = time.monotonic()
        figures = {
            "executions": self.executions,
            "seconds": self.told - self.begun,
            "failures": self.failures,
            "outcomes": len(self.outcomes),
            "accepted": sum(count for name, count in self.outcomes.items() if "accepted" in name),
            "peak_rss": resident(),
            "grown": resident() - self.base,
        }
        aside = self.folder / "figures.part"
        aside.write_text(json.dumps(figures))
        aside.rename(self.folder / "figures.json")

    def _attempt(self, data: bytes) -> tuple[str | None, str | None]:
        """Outcome and failure of one input; one of them."""
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            outcome = self.target.run(data, self.work)
        except Hang:
            return None, "Hang"
        except Exception as error:  # whatever escapes is the finding
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.trace = traceback.format_exc()
            told = (
                str(error).split(":")[0][:40]
                if type(error).__name__ == "Differs"
                else type(error).__name__
            )
            return None, f"{told} at {Path(at.filename).name}:{at.lineno}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if resident() - self.base > GROWTH:
            self.base = resident()
            return None, "Memory"
        return outcome, None

    def _keep(self, data: bytes, failure: str) -> None:
        """Keep the smallest input found that fails in this way; only the first of a kind."""
        from tests.robustness.fuzz.shrink import shrunk

        self.failures += 1
        if failure in self.known:
            return
        self.known.add(failure)
        trace = getattr(self, "trace", "")
        small = (
            data
            if failure in ("Hang", "Memory")
            else shrunk(data, lambda part: self.fails(part) == failure)
        )
        name = f"{self.target.name}-{hashlib.sha256(small).hexdigest()[:12]}"
        (self.folder / "failed" / name).write_bytes(small)
        (self.folder / "failed" / f"{name}.txt").write_text(f"{failure}\n{small[:300]!r}\n{trace}")


def resident() -> int:
    """The most bytes of memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def random_engine(trial: Trial, request: dict[str, Any]) -> None:
    """Inputs of the mutator, until the time or the number of executions is up; those with a new
    outcome join its pool.
    """
    from tests.robustness.fuzz.mutate import Mutator

    for seed in trial.target.seeds:
        trial(seed)
    made = Mutator(request["seed"], trial.target.seeds, trial.target.words)
    seen = set(trial.outcomes)
    end = time.monotonic() + request["seconds"]
    while time.monotonic() < end and trial.executions < request["executions"]:
        data = made()
        outcome = trial(data)
        if outcome is not None and outcome not in seen:
            seen.add(outcome)
            made.keep(data)


def atheris_engine(trial: Trial, request: dict[str, Any], atheris: Any) -> None:
    """libFuzzer's inputs, led by the coverage of the modules that were instrumented. Ends the
    process.
    """
    corpus = trial.folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for i, seed in enumerate(trial.target.seeds):
        (corpus / f"seed{i}").write_bytes(seed)
    words = trial.folder / "words"
    words.write_text(
        "".join('"' + "".join(f"\\x{b:02x}" for b in word) + '"\n' for word in trial.target.words)
    )

    def one(data: bytes) -> None:
        trial(data)

    options = [
        f"-max_total_time={int(request['seconds'])}",
        f"-seed={request['seed'] + 1}",
        f"-dict={words}",
        "-max_len=16384",
    ]
    options += ["-rss_limit_mb=0", "-timeout=60", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(corpus), *options], one)
    atheris.Fuzz()


def main() -> int:
    """Run the request."""
    request = json.loads(Path(sys.argv[1]).read_text())
    folder, work = Path(request["folder"]), Path(request["work"])
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(2 * request["seconds"]) + 60, int(2 * request["seconds"]) + 65)
    )

    def late(number: int, frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGPROF, late)
    atheris = None
    if request["engine"] == "atheris":
        import atheris

        for module in pkgutil.iter_modules(xcray.kernels.__path__, "xcray.kernels."):
            importlib.import_module(module.name)  # numba can't compile what is instrumented
        with atheris.instrument_imports(include=["xcray"]):
            from tests.robustness.fuzz.targets import TARGETS
    else:
        from tests.robustness.fuzz.targets import TARGETS
    target = TARGETS[request["target"]]
    for seed in target.seeds:
        target.run(seed, work)  # kernels are compiled and loaded before time and memory are counted
    if sys.platform == "linux" and atheris is None:
        size = (
            int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        )
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    trial = Trial(target, folder, work)
    if atheris is not None:
        atheris_engine(trial, request, atheris)
    else:
        random_engine(trial, request)
    trial.tell()
    return 0


if __name__ == "__main__":
    sys.exit(main())
