"""A linear model in shards: label ranges as models of their own, and a front without weights.

Each shard is an ordinary model whose labels are called by their numbers in the whole model. The
front has everything else: names, text pipeline, calibration, thresholds, report. It has the content
hash of the whole model, because it gives the same answers, and records the hash of each shard.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from xcray.arrays import Int64, csr, frozen
from xcray.errors import ParameterError
from xcray.model.directory import DUALS, TIMELINE
from xcray.model.label_groups import FOLDER as GROUPS
from xcray.model.linked_copy import with_files
from xcray.model.manifest import BIAS, LISTS, WEIGHTS, LabelRange
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.storage.atomic import check_name
from xcray.system.file_lock import exclusive_lock

MAX_SHARDS: Final = 1000
LABEL_BYTES: Final = 100  # what a label takes besides its weights, in memory and in the search
WEIGHT_BYTES: Final = 12
STAGING: Final = ".sharding-"  # prefix of folders with unfinished models
LOCK: Final = ".sharding.lock"


def shard_model(
    model: Model, out: str | Path, name: str, n_shards: int
) -> Iterator[tuple[Path, LabelRange | None]]:
    """Publish a model in shards below `out`: yield the homes of the shards, then that of the front.

    Each home is a folder for `xcray serve --home`, with one model in its registry: `name` in
    OUT/front, and in OUT/shard-1 to OUT/shard-N one whose name depends on the content of the whole
    model, so that homes hold several versions. Shards of an earlier call are kept. The ranges have
    about the same number of weights. model: open and verified. Raises ParameterError for an
    invalid name, and for a model whose answers can't be merged from those of label ranges.
    """
    check_name(name)
    _check(model, n_shards)
    ranges = []
    for i, (begin, end) in enumerate(pairwise(range_borders(model, n_shards).tolist()), start=1):
        home = Path(out) / f"shard-{i}"
        registry = Registry(home / "models")
        shard_name = f"{model.sha256[:16]}-{i}-of-{n_shards}"
        with _staging(home) as folder:
            if not registry.versions(shard_name):
                _write_shard(model, folder / shard_name, begin, end)
                registry.publish(shard_name, folder / shard_name, verified=True)
        sha256 = registry.describe(shard_name, registry.versions(shard_name)[-1]).sha256
        ranges.append(LabelRange(shard_name, begin, end, sha256))
        yield home, ranges[-1]
    home = Path(out) / "front"
    with _staging(home) as folder:
        _write_front(model, folder / name, ranges)
        Registry(home / "models").publish(name, folder / name, verified=True)
    yield home, None


def range_borders(model: Model, n_shards: int) -> Int64:
    """Return the borders (n_shards + 1,) of label ranges that take about the same memory."""
    K = model.n_labels
    cost = WEIGHT_BYTES * model.W.indptr + LABEL_BYTES * np.arange(K + 1)
    shares = np.linspace(0, cost[-1], n_shards + 1)
    borders = np.searchsorted(cost, shares)
    # at least one label for each, also next to a label with very many weights
    places = np.arange(n_shards + 1)
    borders = np.maximum.accumulate(borders - places) + places
    return frozen(np.minimum(borders, K - n_shards + places), np.int64)


def _check(model: Model, n_shards: int) -> None:
    """Raise ParameterError unless the model can be split into these shards."""
    model.require_linear()
    most = min(MAX_SHARDS, model.n_labels)
    if not 1 <= n_shards <= most:
        raise ParameterError(f"{n_shards} shards: it must be 1 to {most} for this model")
    if model.link != "identity":
        raise ParameterError(
            "probabilities of a softmax model are sums over all labels, with other bits if they "
            "are added by shard: serve it from one machine, or train it with PPDSparse",
            code="SHARDS",
        )
    if model.ranker is not None:
        raise ParameterError(
            "a ranker reads the weights of its candidates, which no process would have: "
            "use the model without it",
            code="SHARDS",
        )


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """Yield a folder for an unfinished model on the file system of a home.

    Another call waits; what a killed one left is removed.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive_lock(home / LOCK):
        for leftover in home.glob(f"{STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=STAGING, dir=home) as folder:
            yield Path(folder)


def _write_shard(model: Model, path: Path, begin: int, end: int) -> None:
    """Write the labels [begin, end) of a model as a model."""
    W, groups, manifest = model.W, model.groups, model.manifest
    content = ModelContent(
        csr(W.indptr[begin : end + 1], W.indices, W.data, W.n_cols),
        model.b[begin:end],
        list(map(str, range(begin, end))),
        model.feature_names,
        row_norm=model.row_norm,
        groups=None if groups is None else groups.with_members(groups.members[begin:end]),
    )
    record = TrainingRecord(
        manifest["solver"],
        manifest["params"],
        manifest["dataset_hash"],
        report={"shard": {"model": model.sha256, "labels": [begin, end]}},
    )
    write_model(path, content, record)


def _write_front(model: Model, path: Path, ranges: list[LabelRange]) -> None:
    """Write the model without its weights."""
    stage = {
        name: entry
        for name, entry in model.manifest["stages"][0].items()
        if name not in ("weights", "bias", "groups")
    }
    stage["shards"] = [each._asdict() for each in ranges]
    files = model.manifest["files"]
    without = {WEIGHTS, BIAS, LISTS, DUALS, TIMELINE}
    without |= {each for each in files if each.startswith(f"{GROUPS}/")}
    with_files(model, path, {"stages": [stage], "index": {}}, without=without)
