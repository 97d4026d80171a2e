"""The selection of a training run: preflight, progress, time limit, and its stored result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xcray.arrays import frozen
from xcray.data.dataset import Dataset, open_verified
from xcray.data.documents import keeps_texts, rebuild
from xcray.errors import InputError, Stopped
from xcray.solvers import SOLVERS, make_solver
from xcray.storage.atomic import discard_directory, read_json, write_json
from xcray.storage.run_directory import REBUILT
from xcray.system.cores import available_cores
from xcray.telemetry.progress import Progress
from xcray.training.capacity.preflight import (
    check_fits,
    estimate,
    memory_limits,
    worker_count,
)
from xcray.training.selection.coordinate_search import MAX_TRAININGS, Selector
from xcray.training.selection.evaluate import STOPPED
from xcray.training.selection.held_out import selection_bytes, selection_data
from xcray.training.selection.text_options import TextSelector, text_seconds
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag

TIME_SHARE = 0.5  # share of max_seconds that a selection can take
RESULT_FILE = "selection.json"


def choose_params(
    spec: TrainSpec,
    run_dir: Path,
    out: Path,
    progress: Callable[[Progress], None],
    stop: StopFlag,
) -> tuple[TrainSpec, dict[str, Any]]:
    """Return the spec with the parameters that its `auto` chooses, and an entry of the report.

    Runs on threads of this process, whatever the pool. With spec.max_seconds the selection takes
    at most half of it, and the returned spec has the rest. run_dir: stores measured settings, and
    the result, which a later call with the same spec and data returns at once. Raises Refused if
    the selection or a training with the given parameters does not fit, InputError, and Stopped.
    """
    began, dataset = time.monotonic(), open_verified(spec.dataset)
    identity = {
        "params": dict(spec.params),
        "select": spec.auto,
        "dataset": dataset.content_hash,
        "revision": SOLVERS[spec.solver].revision,
    }
    path = run_dir / RESULT_FILE
    document = read_json(path) if path.exists() else {}
    if document.get("identity") != json.loads(json.dumps(identity)):
        check_selection_fits(spec, dataset, run_dir, out)
        limits = _Limits(spec.max_seconds, progress, stop)
        text = _rebuild(spec, dataset, run_dir, limits) if keeps_texts(dataset) else {}
        if text.get("text", {}).get("chosen"):
            dataset = Dataset.open(run_dir / REBUILT)
        chosen, report = _select(spec, dataset, run_dir / "auto", limits)
        document = {"identity": identity, "chosen": chosen, "report": {**report, **text}}
        write_json(path, document)
    if document["report"].get("text", {}).get("chosen"):
        spec = replace(spec, dataset=str(run_dir / REBUILT))
    seconds = spec.max_seconds
    if seconds is not None:
        seconds = max(seconds - (time.monotonic() - began), (1 - TIME_SHARE) * seconds)
    params = {**spec.params, **document["chosen"]}
    chosen_spec = replace(spec, params=params, auto=None, max_seconds=seconds)
    return chosen_spec, {"auto": document["report"]}


def check_selection_fits(spec: TrainSpec, dataset: Dataset, run_dir: Path, out: Path) -> None:
    """Raise Refused if a selection, or a training with the given parameters, does not fit.

    Raises InputError if no training row has a label.
    """
    train = dataset.train
    if train.n_rows == 0 or train.Y.nnz == 0:
        raise InputError(
            "the training part has no row with a label; check the label column of the source",
            code="NO_POSITIVES",
        )
    labels = frozen(np.arange(dataset.n_labels), np.int32)
    solver: Any = make_solver(spec.solver, spec.params)
    workers = worker_count(spec)
    needs = estimate(spec, dataset, solver, labels, workers=workers, probe_seconds=0.0)
    driver = max(needs.driver, selection_bytes(train.X.nnz, needs.weights))
    check_fits(needs._replace(driver=driver), memory_limits(spec), run_dir, out)


class _Limits:
    """Progress, stop flag and time limit of a selection."""

    def __init__(
        self, seconds: float | None, progress: Callable[[Progress], None], stop: StopFlag
    ) -> None:
        self._seconds, self._progress, self.stop = seconds, progress, stop
        self._began = time.monotonic()

    def tick(self, number: int, setting: str) -> None:
        """Report the setting that is tried. Raises Stopped if a stop was requested."""
        if self.stop.is_set():
            raise Stopped(STOPPED)
        seconds = time.monotonic() - self._began
        self._progress(Progress("SELECTING", number, 0, seconds, 0.0, None, setting))

    def is_late(self) -> bool:
        """Return whether the share of the selection is over."""
        limit = self._seconds
        return limit is not None and time.monotonic() - self._began > TIME_SHARE * limit


def selection_seconds(spec: TrainSpec, dataset: Dataset, training: float) -> float | None:
    """Return the core seconds that `auto` can take; None without it. training: of a training."""
    if not spec.auto:
        return None
    train = dataset.train
    texts = text_seconds(train.n_rows, train.X.nnz, training) if keeps_texts(dataset) else 0.0
    return MAX_TRAININGS * training + texts


def _rebuild(spec: TrainSpec, dataset: Dataset, run_dir: Path, limits: _Limits) -> dict[str, Any]:
    """Choose text options, build the data set with them again, and return the report."""
    selector = TextSelector(
        dataset,
        spec.solver,
        spec.params,
        str(spec.auto),
        _threads(spec),
        run_dir / "text-options.json",
        stop=limits.stop,
        tick=limits.tick,
        is_late=limits.is_late,
    )
    began = time.process_time()
    params, report = selector.run()
    if report["chosen"]:
        discard_directory(run_dir / REBUILT)
        rebuild(dataset, params, run_dir / REBUILT)
    seconds = round(time.process_time() - began, 3)
    return {"text": {**report, "dataset": dataset.content_hash, "cpu_seconds": seconds}}


def _select(
    spec: TrainSpec, dataset: Dataset, folder: Path, limits: _Limits
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the chosen parameters and the report."""
    train = dataset.train
    selector = Selector(
        spec.solver,
        selection_data(train.X, train.Y, train.weights),
        spec.params,
        str(spec.auto),
        _threads(spec),
        folder=folder,
        stop=limits.stop,
        tick=limits.tick,
        is_late=limits.is_late,
    )
    return selector.run()


def _threads(spec: TrainSpec) -> int:
    """Return the threads of a selection."""
    return 1 if spec.pool == "serial" else min(spec.workers or 4096, available_cores())
