"""Whether a training's model is there already: what commands ask that are run again, as the entrypoint of a job in a cluster is."""

from __future__ import annotations

import json
from pathlib import Path

from xcray.data.dataset import Dataset
from xcray.errors import Conflict
from xcray.model.directory import MANIFEST
from xcray.model.model import Model
from xcray.solvers import make_solver
from xcray.training.run import TrainResult
from xcray.training.spec import TrainSpec


def finished(spec: TrainSpec, out: Path) -> TrainResult | None:
    """The model at `out` when it is what training `spec` gave, verified; None when nothing is there.

    The same solver, parameters and data are the same model; one that is calibrated, or lacks labels because its time was up, is
    what a spec gave that asked for it. Raises Conflict when something else is there, Corrupt when its files are damaged.
    """
    if not (out / MANIFEST).is_file():
        if out.exists():
            raise Conflict(f"{out.name} exists and is no model: choose another path, or remove it")
        return None
    model = Model.open(out)
    told, report = model.manifest, model.manifest["report"]
    params = json.loads(json.dumps(make_solver(spec.solver, spec.params).as_dict()))
    same = (told["solver"], told["params"], told["dataset_hash"]) == (
        spec.solver,
        params,
        Dataset.open(spec.dataset).content_hash,
    )
    probable = not spec.calibrate or model.calibration is not None or "not_calibrated" in report
    if not same or not probable or ("partial" in report and spec.max_seconds is None):
        raise Conflict(
            f"{out.name} holds the model of another training: choose another path, or remove it"
        )
    return TrainResult(out, model.sha256, model.measures, report)
