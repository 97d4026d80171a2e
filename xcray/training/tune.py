"""Hyper-parameter search: solve every grid point on a part of the rows, choose the best, train it.

The data is loaded once, points start from the nearest solved one, and finished points are stored.
The final model equals, byte by byte, the one that `train` makes of all training rows with the
chosen parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from xcray.api.options import DEFAULT_MEASURE
from xcray.data.dataset import Dataset, open_verified
from xcray.errors import ParameterError, Stopped
from xcray.solvers import SOLVERS, make_solver
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    publish_directory,
    write_json,
)
from xcray.telemetry.progress import Progress
from xcray.training.capacity.preflight import worker_count
from xcray.training.part_training import PartTraining
from xcray.training.run import TrainResult, train, train_model
from xcray.training.run_lock import hold_run_directory
from xcray.training.selection.evaluate import STOPPED, Evaluator
from xcray.training.selection.grid import Point, params_key, plan_points, validate_grid
from xcray.training.selection.held_out import held_out_rows, hold_out
from xcray.training.selection.measure import measure_value, parse_measure
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag


@dataclass(frozen=True)
class TuneSpec:
    """Description of a search. Validated when created; raises ParameterError with a fix.

    train: the final training; its params are shared by all points. grid: values of lam, tau, C and
    other numeric parameters of the solver.
    select: the measure to choose by, on held-out rows, see `parse_measure`; ties select the sparser
    model. holdout: share of the training rows to measure on, chosen by a hash of
    their number. seed: of this choice.
    """

    train: TrainSpec
    grid: Mapping[str, tuple[float, ...]]
    select: str = DEFAULT_MEASURE
    holdout: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate everything that does not depend on the data."""
        object.__setattr__(self, "grid", validate_grid(self.grid))
        if repeated := sorted(set(self.grid) & set(self.train.params)):
            raise ParameterError(
                f"{repeated[0]} is in the grid and among the fixed parameters; give it once"
            )
        for point in plan_points(self.grid):
            make_solver(self.train.solver, {**self.train.params, **point.params})
        terms = parse_measure(self.select)
        if (
            isinstance(self.holdout, bool)
            or not isinstance(self.holdout, int | float)
            or not 0.0 < self.holdout < 1.0
        ):
            raise ParameterError(
                f"holdout is {str(self.holdout)[:80]!r}; "
                "it must be a share of the rows between 0 and 1, for example 0.2"
            )
        object.__setattr__(
            self,
            "train",
            dataclasses.replace(self.train, ks=(*self.train.ks, *(k for _, k in terms))),
        )


class TuneResult(NamedTuple):
    """Result of a search.

    path: the directory. settings: in the order of solving, each as in path.json. chosen: parameters
    of the best one. model: result of the final training.
    """

    path: Path
    settings: list[dict[str, Any]]
    chosen: dict[str, float]
    model: TrainResult


def tune(
    spec: TuneSpec,
    *,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None] = lambda _: None,
    stop: StopFlag | None = None,
    job: str = "local",
) -> TuneResult:
    """Solve all points, choose the best, train the final model, and publish the directory `out`.

    out: receives model/ (the model directory) and path.json (all points). run_dir: stores finished
    points. Call again with the same directory, also with another grid, to resume.
    progress, stop, job: as in `xcray.training.train`. Raises the errors of `train`, and
    ParameterError if one side of the split has no rows.
    """
    stop = stop or StopFlag()
    with hold_run_directory(Path(run_dir), Path(out), stop):
        return _TuneRun(spec, Path(run_dir), progress, stop, job).run(Path(out))


@dataclass
class _TuneRun:
    """State of one search."""

    spec: TuneSpec
    run_dir: Path
    progress: Callable[[Progress], None]
    stop: StopFlag
    job: str
    start_time: float = field(default_factory=time.monotonic)

    def run(self, out: Path) -> TuneResult:
        """Evaluate the settings, choose one, and train the final model."""
        points = plan_points(self.spec.grid)
        data = open_verified(self.spec.train.dataset)
        self._report_progress(points, 0, 0, 0)
        held = hold_out(data, self.spec.holdout, self.spec.seed, self.run_dir / "held")
        evaluator = self._make_evaluator(held)
        results = []
        for point in points:
            start = points[point.start].params if point.start is not None else None
            tick = functools.partial(self._report_progress, points, point.number, held.n_labels)
            results.append(evaluator.evaluate(point.params, start, tick=tick))
            later = {each.start for each in points[point.number + 1 :]}
            evaluator.keep_duals(points[number].params for number in later if number is not None)
        return self._finish(out, results)

    def _make_evaluator(self, held: Dataset) -> Evaluator:
        """Return the evaluator. Solvers without warm starts, and Ray, train each setting."""
        spec = self.spec.train
        is_warm = spec.pool != "ray" and SOLVERS[spec.solver].warm_starts
        return Evaluator(
            spec.solver,
            spec.params,
            held_out_rows(held),
            self.spec.select,
            ks=spec.ks,
            pool=spec.pool,
            workers=worker_count(spec),
            folder=self.run_dir / "settings",
            stop=self.stop,
            trainer=None if is_warm else functools.partial(self._train, held),
        )

    def _train(
        self, held: Dataset, params: Mapping[str, Any], folder: Path, tick: Callable[[int], None]
    ) -> dict[str, Any]:
        """Train and measure a setting on the held-out data set; its model is not kept.

        An interrupted training is continued from its run directory.
        """
        began = time.monotonic()

        def report(step: Progress) -> None:
            tick(round(held.n_labels * min(1.0, step.done / max(step.total, 1))))

        discard_directory(folder / "model")
        ks = tuple({min(k, held.n_labels) for k in self.spec.train.ks})
        spec = dataclasses.replace(self.spec.train, params=params, ks=ks)
        training = PartTraining(train_model, report, self.stop, self.job)
        model = training.model(spec, held, folder)
        measures, trained = model.measures, model.manifest["report"]
        discard_directory(folder)
        return {
            "value": measure_value(measures, self.spec.select, held.n_labels),
            "measures": measures,
            "weights": trained["weights"],
            "work": 0,
            "seconds": time.monotonic() - began,
            "core_seconds": trained["core_seconds"],
            "labels": held.n_labels,
            "certified": trained.get("labels_certified"),
            "largest_gap": trained.get("largest_gap"),
        }

    def _finish(self, out: Path, results: list[dict[str, Any]]) -> TuneResult:
        """Train the final model on all training rows, with every point in its report."""
        best = choose_setting(results)
        for number, result in enumerate(results):
            result["chosen"] = number == best
        chosen = results[best]["params"]
        settings = {name: getattr(self.spec, name) for name in ("select", "holdout", "seed")}
        report = {
            **settings,
            "grid": {name: list(values) for name, values in self.spec.grid.items()},
            "chosen": chosen,
            "settings": results,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        staged = create_staging_directory(out)
        try:
            spec = dataclasses.replace(self.spec.train, params={**self.spec.train.params, **chosen})
            model = train(
                spec,
                run_dir=self.run_dir / "final" / params_key(chosen),
                out=staged / "model",
                progress=self.progress,
                stop=self.stop,
                job=self.job,
                notes={"path": report},
            )
            write_json(
                staged / "path.json", {**report, "model": model.sha256, "test": model.measures}
            )
            publish_directory(staged, out)
        finally:
            discard_directory(staged)
        return TuneResult(out, results, chosen, model._replace(model_path=out / "model"))

    def _report_progress(self, points: list[Point], number: int, n_labels: int, done: int) -> None:
        """Report progress over all points. Raises Stopped if a stop was requested."""
        if self.stop.is_set():
            raise Stopped(STOPPED)
        note = f"point {number + 1} of {len(points)}: {points[number].text}"
        seconds, done_labels, total = (
            time.monotonic() - self.start_time,
            number * n_labels + done,
            len(points) * n_labels,
        )
        self.progress(
            Progress(
                "POINTS",
                done_labels,
                total,
                seconds,
                done_labels / seconds if seconds else 0.0,
                None,
                note,
            )
        )


def choose_setting(results: list[dict[str, Any]]) -> int:
    """Return the number of the setting with the best value; ties: the sparser, then the earlier."""
    return min(range(len(results)), key=lambda i: (-results[i]["value"], results[i]["weights"], i))
