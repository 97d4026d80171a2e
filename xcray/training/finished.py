"""Check whether a training's model already exists.

Commands that can run again need this, for example the entrypoint of a cluster job.
"""

from __future__ import annotations

import json
from pathlib import Path

from xcray.data.dataset import Dataset
from xcray.errors import Conflict
from xcray.model.manifest import MANIFEST
from xcray.model.model import Model
from xcray.solvers import make_solver
from xcray.training.report.partial import is_complete
from xcray.training.run import TrainResult
from xcray.training.spec import TrainSpec


def find_finished(spec: TrainSpec, out: Path) -> TrainResult | None:
    """Return the verified model at `out` if training `spec` produced it, otherwise None.

    The same solver, parameters and data give the same model. A spec with calibration needs a
    calibrated or ranked model, or one that could not be calibrated; the same holds for a ranker.
    A model that the time limit left incomplete needs a spec with such a limit.
    Raises Conflict if `out` holds something else, Corrupt if the model's files are damaged.
    """
    if not (out / MANIFEST).is_file():
        if out.exists():
            raise Conflict(
                f"{out.name} exists and is not a model: choose another path, or remove it"
            )
        return None
    model = Model.open(out)
    manifest, report = model.manifest, model.manifest["report"]
    chosen, data_hash = dict(spec.params), manifest["dataset_hash"]
    if spec.auto:
        settings = report.get("auto", {"settings": []})["settings"]
        data_hash = report.get("auto", {}).get("text", {}).get("dataset", data_hash)
        chosen = next((row["params"] for row in settings if row["chosen"]), {}) | chosen
    params = json.loads(json.dumps(make_solver(spec.solver, chosen).as_dict()))
    same_training = (
        manifest["solver"],
        manifest["params"],
        data_hash,
    ) == (
        spec.solver,
        params,
        Dataset.open(spec.dataset).content_hash,
    )
    calibration_matches = (
        not spec.calibrate
        or model.calibration is not None
        or model.ranker is not None
        or "not_calibrated" in report
    )
    groups = report.get("groups", {"requested": "none"})["requested"]
    ranker_matches = not spec.rank or model.ranker is not None or "not_ranked" in report
    if (
        not same_training
        or groups != spec.groups
        or not calibration_matches
        or not ranker_matches
        or (spec.auto and report.get("auto", {}).get("select") != spec.auto)
        or (not is_complete(report) and spec.max_seconds is None)
    ):
        raise Conflict(
            f"{out.name} holds the model of another training: choose another path, or remove it"
        )
    return TrainResult(out, model.sha256, model.measures, report)
