"""Contract of indexes for maximum inner products, and what they miss."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from xcray.arrays import CSR, csr, csr_from
from xcray.errors import ParameterError, ShapeMismatch
from xcray.index.approximate import INDEXES, build_index
from xcray.kernels.search.candidates import nearest_codes

K, D, N = 300, 50, 40
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("exact", {}),
    # the wheels of nmslib are for x86_64 only
    *([("nmslib", dict[str, Any]())] if importlib.util.find_spec("nmslib") else []),
    ("lsh", {}),
    ("lsh", {"bits": 1024}),
    ("lsh", {"bits": 256, "components": 20}),
]
each = pytest.mark.parametrize(("name", "settings"), SETTINGS)


def problem(seed: int = 0) -> tuple[CSR, CSR]:
    """Return rows W (K, D) of different lengths, some empty, and queries X (N, D)."""
    random = np.random.default_rng(seed)
    W = random.normal(size=(K, D)) * (random.random((K, D)) < 0.2) * random.uniform(0.2, 2, (K, 1))
    W[:5] = 0.0
    X = random.normal(size=(N, D)) * (random.random((N, D)) < 0.3)
    X[3] = 0.0
    return csr_from(W.astype(np.float32)), csr_from(X.astype(np.float32))


@each
@pytest.mark.parametrize("k", [1, 7, K + 5])
def test_scores_are_exact_and_in_order(name: str, settings: dict[str, Any], k: int) -> None:
    W, X = problem()
    top = build_index(name, W, **settings).query(X, k)
    assert top.labels.shape == top.scores.shape == (N, min(k, K))
    exact = X.to_scipy().toarray().astype(np.float64) @ W.to_scipy().toarray().T
    for i in range(N):
        found = top.labels[i][top.labels[i] >= 0]
        assert len(set(found.tolist())) == len(found)
        assert top.scores[i, : len(found)] == pytest.approx(exact[i, found], abs=1e-6)
        assert (top.labels[i, len(found) :] == -1).all()
        assert (top.scores[i, len(found) :] == -np.inf).all()
        pairs = list(zip(-top.scores[i, : len(found)], found, strict=True))
        assert pairs == sorted(pairs)


@each
def test_recall_and_margin_error(name: str, settings: dict[str, Any]) -> None:
    W, X = problem()
    top = build_index(name, W, **settings).query(X, 1)
    exact = (X.to_scipy().toarray().astype(np.float64) @ W.to_scipy().toarray().T).max(axis=1)
    error = exact - top.scores[:, 0]
    error[3] = 0.0  # a query without entries has no best row
    recall = float((error < 1e-6).mean())
    if name == "exact":
        assert recall == 1.0
        assert error == pytest.approx(0.0, abs=1e-6)
    random = exact - X.to_scipy().toarray() @ W.to_scipy().toarray()[K // 2]
    assert error.min() > -1e-6
    assert error.mean() < 0.5 * random.mean()
    assert recall > (0.9 if name == "nmslib" else 0.05)


def test_more_bits_find_more() -> None:
    W, X = problem()
    best = (X.to_scipy() @ W.to_scipy().T).toarray().max(axis=1)
    errors = [
        (best - build_index("lsh", W, bits=bits).query(X, 1).scores[:, 0]).mean()
        for bits in (64, 1024)
    ]
    assert errors[0] > 10 * abs(errors[1])


@each
def test_the_same_input_gives_the_same_answers(name: str, settings: dict[str, Any]) -> None:
    W, X = problem()
    first, again = (build_index(name, W, **settings).query(X, 5) for _ in range(2))
    assert first.labels.tolist() == again.labels.tolist()


@each
def test_edges(name: str, settings: dict[str, Any]) -> None:
    empty, X = csr([0, 0, 0], [], [], D), problem()[1]
    top = build_index(name, empty, **settings).query(X, 2)
    assert top.labels.shape == (N, 2)
    with pytest.raises(ShapeMismatch, match=r"features"):
        build_index(name, empty, **settings).query(csr([0, 0], [], [], D + 1), 1)


def test_wrong_settings_name_the_fix() -> None:
    W, _ = problem()
    with pytest.raises(ParameterError, match="exact, nmslib, lsh"):
        build_index("tree", W)
    with pytest.raises(ParameterError, match="64, 128"):
        build_index("lsh", W, bits=100)
    assert sorted(INDEXES) == ["exact", "lsh", "nmslib"]


def test_nearest_codes_are_those_of_a_stable_sort() -> None:
    random = np.random.default_rng(5)
    codes, queries = (random.integers(0, 2**63, (n, 2)).astype(np.uint64) for n in (60, 9))
    codes[30:] = codes[:30]  # ties
    bits = [np.unpackbits(each.view(np.uint8), axis=1) for each in (queries, codes)]
    distances = (bits[0][:, None] != bits[1][None]).sum(axis=2)
    for m in (1, 5, 60):
        found = np.empty((9, m), np.int32)
        nearest_codes(queries, codes, found)
        expected = np.sort(np.argsort(distances, axis=1, kind="stable")[:, :m], axis=1)
        assert found.tolist() == expected.tolist()
