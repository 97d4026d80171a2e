"""Rows of the tables of docs/papers.md: a claim of a paper, its figure, and how it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.harness import dataset
from xcray.data.dataset import Dataset
from xcray.measures import evaluate
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training.run import train
from xcray.training.spec import TrainSpec

T = TypeVar("T")


class Figure(NamedTuple):
    """Curves of a repeated figure.

    axes: labels of x and y. curves: points by name. scales: whether x and y are logarithmic.
    """

    title: str
    axes: tuple[str, str]
    curves: dict[str, list[tuple[float, float]]]
    scales: tuple[bool, bool] = (False, False)


class Outcome(NamedTuple):
    """What was measured. held: whether it agrees with the claim."""

    ours: str
    held: bool
    figure: Figure | None = None


class Trained(NamedTuple):
    """A training. measures: in percent; seconds: of one core; ms: per row of a prediction."""

    measures: dict[str, float]
    seconds: float
    weights: int
    ms: float
    report: dict[str, Any]


@dataclass
class Bench:
    """Data sets and trainings of a run, each made once. data: see `benchmarks.harness.dataset`."""

    data: Path
    folder: Path
    _made: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, which is called once for each name."""
        if name not in self._made:
            self._made[name] = make()
        result: T = self._made[name]
        return result

    def open(self, name: str) -> Dataset:
        """Return a data set."""
        return dataset(name, self.data, self.folder)

    def train(self, name: str, solver: str, params: Mapping[str, Any] | None = None) -> Trained:
        """Train on a set with one worker, and evaluate on its test part."""
        params = dict(params or {})
        key = f"{name} {solver} {sorted(params.items())}"
        return self.once(key, lambda: self._train(name, solver, params))

    def _train(self, name: str, solver: str, params: dict[str, Any]) -> Trained:
        """Train, see `train`."""
        data, place = self.open(name), self.folder / f"training-{len(self._made)}"
        spec = TrainSpec(str(data.path), solver=solver, pool="serial", params=params)
        result = train(spec, run_dir=place / "run", out=place / "model")
        predictor, test = Predictor(Model.open(result.model_path)), data["test"]
        predictor.predict(test.X, 5)
        begin = time.process_time()
        top = predictor.predict(test.X, 5)
        ms = 1e3 * (time.process_time() - begin) / test.n_rows
        measures = {name: 100.0 * value for name, value in evaluate(top, test.Y).items()}
        report = result.report
        return Trained(measures, report["core_seconds"], report.get("weights", 0), ms, report)


class Row(NamedTuple):
    """A row of a table.

    name: of --only. paper: figure of the paper. same: what differs from the paper's experiment.
    needs: names of the data sets it reads. run: measures it.
    """

    name: str
    claim: str
    paper: str
    same: str
    needs: tuple[str, ...]
    run: Callable[[Bench], Outcome]


class Paper(NamedTuple):
    """A paper.

    name: also of its notebook. missing: (what cannot be repeated here, why). pictures: (file,
    caption).
    """

    name: str
    title: str
    reference: str
    rows: tuple[Row, ...]
    missing: tuple[tuple[str, str], ...]
    pictures: tuple[tuple[str, str], ...] = ()


def precisions(trained: Trained) -> str:
    """Return P@1 / P@3 / P@5 in percent."""
    return " / ".join(f"{trained.measures[f'P@{k}']:.2f}" for k in (1, 3, 5))


def within(trained: Trained, paper: tuple[float, float, float], points: float) -> bool:
    """Return whether P@1, P@3 and P@5 are at most `points` below those of the paper."""
    ours = [trained.measures[f"P@{k}"] for k in (1, 3, 5)]
    return all(mine >= theirs - points for mine, theirs in zip(ours, paper, strict=True))
