"""Vowpal Wabbit's recall_tree and oaa on data sets with one label per row.

python -m benchmarks.memoir.vowpal_wabbit --data DIR --python PYTHON [--sets news20_bydate,...]
    [--json FILE]

PYTHON: an interpreter with the package `vowpalwabbit`, which xcray does not need. Rows, measures
and the choice on rows left out are those of `benchmarks.memoir`; the candidates are the loss
(hinge, logistic), the learning rate (0.5, 1) and the number of passes (5, 20). 2^22 hashed weights;
recall_tree has its default number of candidates. Seconds are the processor seconds of a training,
with the reading of its text file. Prints a line per result, and one JSON line.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from sklearn.metrics import f1_score

from benchmarks.common import arguments, in_folder
from benchmarks.memoir.__main__ import EFFORT, ClassData, SingleLabel, leave_out, load, show

REDUCTIONS: Final = ("recall_tree", "oaa")
CANDIDATES: Final = tuple(product(("hinge", "logistic"), (0.5, 1.0), (5, 20)))
BITS: Final = 22


def write_rows(rows: SingleLabel, path: Path, seed: int) -> None:
    """Write rows as text, in a random order; classes begin with 1."""
    X = rows.X.tocsr()
    with path.open("w", encoding="ascii") as file:
        for i in (
            np.random.default_rng(seed).permutation(len(rows.y)) if seed else range(len(rows.y))
        ):
            lo, hi = X.indptr[i], X.indptr[i + 1]
            pairs = " ".join(
                f"{f}:{x:.6g}" for f, x in zip(X.indices[lo:hi], X.data[lo:hi], strict=True)
            )
            file.write(f"{rows.y[i] + 1} | {pairs}\n")


class VowpalWabbit:
    """Trainings and predictions by a command in a folder."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._command = [str(python), "-m", "vowpalwabbit", "--quiet"]
        self._folder = folder

    def measure(
        self, train: SingleLabel, test: SingleLabel, n_classes: int, reduction: str, settings: Any
    ) -> dict[str, float]:
        """Return accuracy and macro-F1 in percent, and processor seconds of the training."""
        loss, rate, passes = settings
        rows, model, best = (self._folder / name for name in ("rows", "model", "best"))
        (self._folder / "rows.cache").unlink(missing_ok=True)
        write_rows(train, rows, 1)
        before = os.times()
        options = [f"--{reduction}", str(n_classes), "--loss_function", loss, "-l", str(rate)]
        cached = ["-c", "-k", "--cache_file", str(self._folder / "rows.cache")]
        repeated = ["--passes", str(passes), "--holdout_off", "-b", str(BITS)]
        self._run(["-d", str(rows), "-f", str(model), *options, *cached, *repeated])
        after = os.times()
        write_rows(test, rows, 0)
        self._run(["-t", "-d", str(rows), "-i", str(model), "-p", str(best)])
        predicted = np.loadtxt(best, np.int64) - 1
        f1 = f1_score(test.y, predicted, average="macro", labels=np.unique(test.y), zero_division=0)
        return {
            "accuracy": 100.0 * float((predicted == test.y).mean()),
            "macro_f1": 100.0 * float(f1),
            "seconds": after.children_user
            + after.children_system
            - before.children_user
            - before.children_system,
        }

    def _run(self, options: list[str]) -> None:
        """Run the command. Raises CalledProcessError if it fails."""
        subprocess.run([*self._command, *options], check=True)


def measure_set(name: str, data: ClassData, peer: VowpalWabbit) -> Iterator[dict[str, Any]]:
    """Yield a result per reduction, with the settings chosen on rows left out."""
    train, validation = leave_out(data.train)
    for reduction in REDUCTIONS:
        tried = [
            peer.measure(train, validation, data.n_classes, reduction, each) for each in CANDIDATES
        ]
        chosen = CANDIDATES[int(np.argmax([each["accuracy"] + each["macro_f1"] for each in tried]))]
        result = peer.measure(data.train, data.test, data.n_classes, reduction, chosen)
        yield {"method": f"VW {reduction} {chosen}", **result}


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure all sets."""
    out: dict[str, Any] = {}
    for name in options.sets.split(","):
        data, out[name] = load(name, options.data, folder), []
        with tempfile.TemporaryDirectory() as place:
            peer = VowpalWabbit(options.python, Path(place))
            for result in measure_set(name, data, peer):
                figures = (result[key] for key in ("accuracy", "macro_f1", "seconds"))
                show(name, result["method"], *figures)
                out[name].append(result)
    return out


def main() -> None:
    """Run the benchmark."""
    options = arguments(
        __doc__ or "",
        python={"type": Path, "required": True, "help": "interpreter with vowpalwabbit"},
        sets={"default": ",".join(EFFORT), "help": "names of data sets"},
    )
    in_folder(lambda folder: run(options, folder), options.json)


if __name__ == "__main__":
    main()
