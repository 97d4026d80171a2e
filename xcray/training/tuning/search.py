"""A path of hyper-parameters: every point solved on one part of the training rows and measured on the rest, the best kept.

The data is loaded once, points start from the nearest solved one, a finished point is kept, and the final model is the
one that `train` makes of all training rows with the chosen parameters, to the byte.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from xcray.data.dataset import Dataset
from xcray.errors import Conflict, ParameterError, Stopped
from xcray.solvers import make_solver
from xcray.storage.arrow import write_table
from xcray.storage.atomic import discard_directory, publish_directory, staging_directory, write_json
from xcray.telemetry.progress import Progress
from xcray.training.run import TrainResult, train
from xcray.training.spec import TrainSpec
from xcray.training.tuning.evaluate import Bench, hold_out
from xcray.training.tuning.grid import Point, checked_grid, key_of, plan
from xcray.workers.pool import StopFlag

FAMILIES = ("P", "recall", "nDCG", "PSP", "PSnDCG")  # measures that a path can choose by, each @k


@dataclass(frozen=True)
class PathSpec:
    """What path to run. Checked when made; raises ParameterError with the mend.

    train: the training that the best point ends in; its params are those all points share. grid: values of lam, tau and C.
    select: the measure to choose by, on held-out rows: P, recall, nDCG, PSP or PSnDCG, @k; equal ones: the sparser model.
    holdout: share of the training rows to measure on, chosen by a hash of their number; seed: another seed, another choice.
    warm: start each point from the nearest solved one; False: from nothing, so that no point depends on any other.
    """

    train: TrainSpec
    grid: Mapping[str, tuple[float, ...]]
    select: str = "P@1"
    holdout: float = 0.2
    seed: int = 0
    warm: bool = True

    def __post_init__(self) -> None:
        """Check everything that can be checked without the data."""
        object.__setattr__(self, "grid", checked_grid(self.grid))
        if twice := sorted(set(self.grid) & set(self.train.params)):
            raise ParameterError(
                f"{twice[0]} is in the grid and among the fixed parameters; give it once"
            )
        solvers = [
            make_solver(self.train.solver, {**self.train.params, **point.params})
            for point in plan(self.grid)
        ]
        if any(solver.family != "scatter" for solver in solvers):
            raise ParameterError(
                f"there is no path for {self.train.solver}: train it once for each value (`xcray train -p lam=...`), or search "
                "with scikit-learn's GridSearchCV over its estimator"
            )
        family, _, k = self.select.partition("@")
        if family not in FAMILIES or not (k.isascii() and k.isdecimal() and 1 <= int(k) <= 100):
            raise ParameterError(
                f"select is {self.select[:80]!r}; it must be one of {', '.join(FAMILIES)} with @k, for example P@1"
            )
        if (
            isinstance(self.holdout, bool)
            or not isinstance(self.holdout, int | float)
            or not 0.0 < self.holdout < 1.0
        ):
            raise ParameterError(
                f"holdout is {str(self.holdout)[:80]!r}; it must be a share of the rows between 0 and 1, as 0.2"
            )
        object.__setattr__(
            self, "train", dataclasses.replace(self.train, ks=(*self.train.ks, int(k)))
        )


class PathResult(NamedTuple):
    """What came out: the folder; points, in the order they were solved, each as in path.json; the chosen one's parameters;
    and the final training's result."""

    path: Path
    points: list[dict[str, Any]]
    chosen: dict[str, float]
    model: TrainResult


def train_path(
    spec: PathSpec,
    *,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None] = lambda _: None,
    stop: StopFlag | None = None,
    job: str = "local",
) -> PathResult:
    """Solve all points, choose the best, train the final model, and publish the folder `out` by one rename.

    out: holds model/ (the model directory), path.json and path.arrow (all points). run_dir: keeps finished points and
    batches; call again with the same one, also with another grid, to do only what is missing. progress, stop, job: as in
    `xcray.training.train`. Raises what `train` raises, and ParameterError when no row is left on one side of the split.
    """
    if Path(out).exists():
        raise Conflict(
            f"{Path(out).name} exists already; choose another path for the results, or remove it first"
        )
    return _Path(spec, Path(run_dir), progress, stop or StopFlag(), job).run(Path(out))


@dataclass
class _Path:
    """One path under way: what its steps share."""

    spec: PathSpec
    run_dir: Path
    progress: Callable[[Progress], None]
    stop: StopFlag
    job: str
    began: float = field(default_factory=time.monotonic)

    def run(self, out: Path) -> PathResult:
        """Points, choice, final model."""
        points = plan(self.spec.grid)
        self._tell(points, 0, 0, 0)
        held = hold_out(
            Dataset.open(self.spec.train.dataset),
            self.spec.holdout,
            self.spec.seed,
            self.run_dir / "held",
        )
        bench = Bench(
            self.spec.train,
            held,
            self.run_dir / ("points" if self.spec.warm else "cold"),
            self.stop,
            self.job,
        )
        results = []
        for point in points:
            start = points[point.start] if self.spec.warm and point.start is not None else None
            tick = functools.partial(self._tell, points, point.number, held.n_labels)
            results.append(bench.result(point, start, tick))
            bench.forget(points, point.number)
        return self._finish(out, results)

    def _finish(self, out: Path, results: list[dict[str, Any]]) -> PathResult:
        """The final model on all training rows, with every point in its report."""
        best = choose(results, self.spec.select)
        for number, result in enumerate(results):
            result["chosen"] = number == best
        chosen = results[best]["params"]
        told = {name: getattr(self.spec, name) for name in ("select", "holdout", "seed", "warm")}
        account = {
            **told,
            "grid": {name: list(values) for name, values in self.spec.grid.items()},
            "chosen": chosen,
            "points": results,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        staged = staging_directory(out)
        try:
            spec = dataclasses.replace(self.spec.train, params={**self.spec.train.params, **chosen})
            model = train(
                spec,
                run_dir=self.run_dir / "final" / key_of(chosen),
                out=staged / "model",
                progress=self.progress,
                stop=self.stop,
                job=self.job,
                notes={"path": account},
            )
            write_json(
                staged / "path.json", {**account, "model": model.sha256, "test": model.measures}
            )
            write_table(staged / "path.arrow", path_table(results))
            publish_directory(staged, out)
        finally:
            discard_directory(staged)
        return PathResult(out, results, chosen, model._replace(model_path=out / "model"))

    def _tell(self, points: list[Point], number: int, n_labels: int, done: int) -> None:
        """Report progress over all points. Raises Stopped when a stop was asked for."""
        if self.stop.is_set():
            raise Stopped(
                "stopped on request; finished points and batches are kept, the next run does the rest"
            )
        note = f"point {number + 1} of {len(points)}: {points[number].said}"
        seconds, at, total = (
            time.monotonic() - self.began,
            number * n_labels + done,
            len(points) * n_labels,
        )
        self.progress(
            Progress("POINTS", at, total, seconds, at / seconds if seconds else 0.0, None, note)
        )


def choose(results: list[dict[str, Any]], select: str) -> int:
    """The number of the best point by a measure; equal ones: the sparser; equal again: the earlier."""
    return min(
        range(len(results)), key=lambda i: (-results[i]["measures"][select], results[i]["nnz"], i)
    )


def path_table(results: list[dict[str, Any]]) -> pa.Table:
    """The points as a table: a column for each parameter, measure and figure."""
    rows = []
    for result in results:
        figures = {
            name: value
            for name, value in result.items()
            if name not in ("params", "measures", "start")
        }
        rows.append(
            {
                **result["params"],
                **result["measures"],
                **figures,
                "warm": result["start"] is not None,
            }
        )
    return pa.Table.from_pylist(rows)
