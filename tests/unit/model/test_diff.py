"""The differences between two models equal those of a comparison label by label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xcray.arrays import csr
from xcray.model import diff as module
from xcray.model.diff import diff
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model


def random_model(path: Path, labels: list[str], features: list[str], seed: int) -> Model:
    """Write and open a model whose rows are empty, short or long; equal seeds give equal rows."""
    rows: dict[str, dict[str, float]] = {}
    for label in labels:
        rng = np.random.default_rng([seed if label.endswith("*") else 0, len(label), ord(label[0])])
        chosen = rng.choice(sorted(features), rng.integers(0, 4), replace=False)
        rows[label] = {str(name): float(rng.integers(1, 3)) for name in chosen}
    columns = [
        sorted((features.index(name), value) for name, value in rows[k].items()) for k in labels
    ]
    W = csr(
        np.cumsum([0, *map(len, columns)]),
        [j for row in columns for j, _ in row],
        [value for row in columns for _, value in row],
        len(features),
    )
    content = ModelContent(
        W=W, b=np.array([len(k) for k in labels]), label_names=labels, feature_names=features
    )
    write_model(path, content, TrainingRecord(solver="made", params={}, dataset_hash="0"))
    return Model.open(path)


def rows_by_name(model: Model) -> dict[str, tuple[float, dict[str, float]]]:
    """Return the bias and the named weights of the first label of each name."""
    out: dict[str, tuple[float, dict[str, float]]] = {}
    for i, name in enumerate(model.labels):
        features, weights = model.W.row(i)
        named = {model.features[j]: float(w) for j, w in zip(features, weights, strict=True)}
        out.setdefault(name, (float(model.b[i]), named))
    return out


@pytest.mark.parametrize("block_weights", [1, 7, 1 << 22])
@pytest.mark.parametrize("order", ["same", "reversed"])
def test_labels_are_compared_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, block_weights: int
) -> None:
    monkeypatch.setattr(module, "BLOCK_WEIGHTS", block_weights)
    names = [f"{letter}{'*' * (i % 2)}" for i, letter in enumerate("abcdefghijklmnop")]
    features = [f"f{i}" for i in range(9)]
    a = random_model(tmp_path / "a", [*names, "a", "only-a"], features, 1)
    b = random_model(
        tmp_path / "b", ["only-b", *names[::-1]], features if order == "same" else features[::-1], 2
    )
    rows_a, rows_b = rows_by_name(a), rows_by_name(b)
    both = [name for name in rows_a if name in rows_b]
    same = [name for name in both if rows_a[name] == rows_b[name]]
    found = diff(a, b)
    assert found.added == ("only-b",)
    assert found.removed == ("only-a",)
    assert found.identical == tuple(same)
    assert found.changed == tuple(name for name in both if name not in same)
    assert 3 < len(same) < len(both) - 3


def test_models_without_common_labels(tmp_path: Path) -> None:
    a = random_model(tmp_path / "a", ["x"], ["f0"], 1)
    b = random_model(tmp_path / "b", ["y"], ["f0"], 1)
    found = diff(a, b)
    assert (found.added, found.removed) == (("y",), ("x",))
    assert (found.identical, found.changed) == ((), ())
