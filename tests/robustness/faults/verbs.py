"""Operations that publish something durably, as functions of a folder; they can be crashed.

`prepare` creates the initial state. `state` returns the state that a reader finds: "old", "new", or
a sentence that describes the damage.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tests.support.live_service import text_model
from xcray.arrays import csr, frozen
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.errors import NotFound, XcrayError
from xcray.jobs.runner.publish import Outcome, Publisher
from xcray.kernels.training.ppdsparse.state import STATE
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.storage.atomic import read_json, write_json
from xcray.training.block_store import BlockStore

RUN: Final = {"solver": "ppdsparse", "params": {}, "dataset": "abc"}
SYNTHETIC: Final = {
    "test_fraction": 0.25,
    "synthetic": {"rows": 200, "features": 50, "labels": 10, "seed": 7},
}


class Verb(NamedTuple):
    """A verb: `prepare` creates the initial state, `do` is crashed, `state` checks the result."""

    prepare: Callable[[Path], None]
    do: Callable[[Path], None]
    state: Callable[[Path], str]


def _model_prepare(folder: Path) -> None:
    text_model(folder / "first", seed=1)
    Registry(folder / "models").publish("m", folder / "first")
    text_model(folder / "staged", seed=2)


def _model_do(folder: Path) -> None:
    Registry(folder / "models").publish("m", folder / "staged")


def _model_state(folder: Path) -> str:
    registry = Registry(folder / "models")
    versions = registry.versions("m")
    for version in versions:
        Model.open(registry.resolve(f"m:{version}"), verify=True)
    if registry.resolve("m") != registry.resolve(f"m:{versions[-1]}"):
        return "latest is not the newest version"
    return {1: "old", 2: "new"}.get(len(versions), f"versions {versions}")


def _alias_prepare(folder: Path) -> None:
    _model_prepare(folder)
    _model_do(folder)
    Registry(folder / "models").aliases.set("m", "prod", 1)


def _alias_do(folder: Path) -> None:
    Registry(folder / "models").aliases.set("m", "prod", 2)


def _alias_state(folder: Path) -> str:
    return {1: "old", 2: "new"}[Registry(folder / "models").resolve_version("m@prod")[1]]


def _desk(folder: Path) -> Publisher:
    return Publisher(folder / "run", Registry(folder / "models"), "job_1", "m")


def _job_prepare(folder: Path) -> None:
    text_model(_desk(folder).staging_path(1), seed=3)


def _job_do(folder: Path) -> None:
    desk = _desk(folder)
    if desk.find_published() is None:
        staged = folder / "run" / "model-a1"
        if not staged.is_dir():
            text_model(desk.staging_path(1), seed=3)
        desk.publish(staged, Outcome("0" * 64, {}, {}), 1, lambda: None)


def _job_state(folder: Path) -> str:
    versions = Registry(folder / "models").versions("m")
    if _desk(folder).find_published() is not None:
        return "new" if versions == [1] else f"found, and versions {versions}"
    return "old" if not versions else f"not found, and versions {versions}"


def _block(first: int) -> SolvedLabels:
    labels = [first, first + 1]
    W = csr(np.array([0, 2, 4]), np.array([0, 3, 1, 2]), np.arange(4) + 1.0 + first, 7)
    records = np.zeros(2, STATE)
    records["label"] = labels
    return SolvedLabels(
        frozen(labels, np.int32), W, frozen(-np.array(labels, float), np.float64), records
    )


def _parts(folder: Path) -> BlockStore:
    return BlockStore(folder / "run", RUN, n_labels=4, n_features=7)


def _parts_prepare(folder: Path) -> None:
    _parts(folder).commit(_block(0))


def _parts_do(folder: Path) -> None:
    _parts(folder).commit(_block(2))


def _parts_state(folder: Path) -> str:
    result = _parts(folder)
    missing = result.missing.tolist()
    if result.damaged:
        return f"a damaged part is in sight: {result.damaged}"
    return "old" if missing == [2, 3] else "new" if missing == [] else f"missing {missing}"


def _checkpoint_prepare(folder: Path) -> None:
    _checkpoint(folder, 1.0)


def _checkpoint_do(folder: Path) -> None:
    _checkpoint(folder, 2.0)


def _checkpoint(folder: Path, value: float) -> None:
    """Write arrays to a file, then the pointer with their digest, as `Checkpoints.write` does."""
    name = f"block-{value:.0f}.arrow"
    digest = write_arrays(folder / name, {"w": np.full(5000, value)})
    write_json(folder / "checkpoint.json", {"file": name, "digest": digest, "value": value})


def _checkpoint_state(folder: Path) -> str:
    document = read_json(folder / "checkpoint.json")
    values = read_arrays(folder / document["file"], document["digest"])["w"]
    return (
        {1.0: "old", 2.0: "new"}[document["value"]]
        if (values == document["value"]).all()
        else "values of another checkpoint"
    )


def _nothing(folder: Path) -> None:
    """Prepare nothing, for verbs that need no initial state."""


def _dataset_do(folder: Path) -> None:
    build("synthetic", {}, folder / "data", BuildOptions.from_dict(SYNTHETIC))


def _dataset_state(folder: Path) -> str:
    try:
        Dataset.open(folder / "data", verify=True)
    except NotFound:
        return "old" if not (folder / "data").exists() else "a data set without a manifest"
    return "new"


def _json_prepare(folder: Path) -> None:
    write_json(folder / "x.json", {"value": 1})


def _json_do(folder: Path) -> None:
    write_json(folder / "x.json", {"value": 2})


def _json_state(folder: Path) -> str:
    return {1: "old", 2: "new"}[read_json(folder / "x.json")["value"]]


VERBS: Final = {
    "json": Verb(_json_prepare, _json_do, _json_state),
    "alias": Verb(_alias_prepare, _alias_do, _alias_state),
    "parts": Verb(_parts_prepare, _parts_do, _parts_state),
    "checkpoint": Verb(_checkpoint_prepare, _checkpoint_do, _checkpoint_state),
    "dataset": Verb(_nothing, _dataset_do, _dataset_state),
    "job": Verb(_job_prepare, _job_do, _job_state),
    "model": Verb(_model_prepare, _model_do, _model_state),
}


def state(verb: str, folder: Path) -> str:
    """Return the state that a reader finds; an error of the reader is damage."""
    try:
        return VERBS[verb].state(folder)
    except (XcrayError, KeyError, OSError) as error:
        return f"{type(error).__name__}: {error}"
