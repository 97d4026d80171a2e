"""The small-world graph of MEMOIR: its edges, what it misses, and the terms of Theorem 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xcray.arrays import csr_from, pattern
from xcray.kernels.training.memoir_graph import BEAM, NEIGHBOURS, SmallWorld
from xcray.solvers import make_solver
from xcray.solvers.group_contract import TrainingRows
from xcray.solvers.memoir.graph_rounds import GraphRounds
from xcray.solvers.memoir.margin_errors import Capacity, share_bound, summarize_errors, theorem_1
from xcray.solvers.memoir.rounds import run_alone
from xcray.solvers.memoir.share import Share
from xcray.solvers.memoir.solver import MemoirSolver

N, D, K = 800, 60, 20 * BEAM


def trained(rounds: int = 3, threads: int = 1, **params: Any) -> GraphRounds:
    """Return a graph after some rounds on rows of random classes."""
    random = np.random.default_rng(0)
    y = np.arange(N) % K
    centres = random.normal(size=(K, D))
    X = (centres[y] + 0.3 * random.normal(size=(N, D))) * (random.random((N, D)) < 0.2)
    solver = MemoirSolver(oracle="sw-graph", batch=500, row_norm="l2", **params)
    rows = TrainingRows(csr_from(X.astype(np.float32)), pattern(np.arange(N + 1), y, K))
    out = GraphRounds(solver.load(rows).problem, solver, 500, Share(threads=threads))
    for number in range(1, rounds + 1):
        run_alone(out.run(number, solver.step_size(number), lambda: False))
    return out


def edges_to(graph: SmallWorld, c: int) -> list[int]:
    """Return the edges in the list of those that lead to a class."""
    found, e, before = [], int(graph.first[c]), -1
    while e >= 0:
        assert graph.previous[e] == before
        found.append(e)
        before, e = e, int(graph.next[e])
    return found


@pytest.mark.parametrize("group", [1, 50])
def test_the_graph_follows_the_weights_and_rarely_misses_the_rival(group: int) -> None:
    rounds = trained(group=group)
    graph = rounds._graph
    targets = graph.targets.reshape(K, NEIGHBOURS)
    members = graph.members[: graph.size[0]]
    assert sorted(members) == sorted(np.flatnonzero(np.diff(rounds.weights().indptr)))
    for c in range(K):
        assert sorted(edges_to(graph, c)) == np.flatnonzero(graph.targets == c).tolist()
        out = targets[c][targets[c] >= 0].tolist()
        assert len(set(out)) == len(out)
        assert c not in out
    assert (targets[members] >= 0).mean() > 0.9
    assert rounds.errors[-1].agreement >= 0.9
    norm = float((rounds.weights().data.astype(float) ** 2).sum())
    assert rounds.state["norm_sq"][0] == pytest.approx(norm, rel=1e-5)


def test_threads_find_the_rivals_of_one() -> None:
    whole, split = (trained(rounds=2, group=0, threads=threads) for threads in (1, 3))
    assert (whole.weights().data == split.weights().data).all()


def test_epsilon_and_delta_of_the_oracle() -> None:
    assert share_bound(0.02, 2000) == pytest.approx(0.02 + np.sqrt(np.log(20.0) / 4000.0))
    assert share_bound(0.9, 10) == 1.0
    shares = [(100, 0.3, 0.1, 0.0), (300, 0.5, 0.1, 0.04)]
    names = ("samples", "above_1", "above_10", "above_100")
    found = summarize_errors([dict(zip(names, each, strict=True)) for each in shares])
    assert [each["epsilon"] for each in found] == [0.01, 0.1, 1.0]
    assert [each["delta"] for each in found] == pytest.approx([0.45, 0.1, 0.03])
    assert found[2]["delta_bound"] == share_bound(0.03, 400)


def test_the_bound_of_theorem_1() -> None:
    capacity = Capacity(classes=20, rows=10_000, radius=1.0, margin=1.0)
    assert capacity.complexity(2.0) == pytest.approx(4 * 20 * 2.0 / 100.0)
    expected = 0.3 + 1.6 + 3.0 * np.sqrt(np.log(80.0) / 20_000.0)
    assert theorem_1(0.3, 1.6, 10_000) == pytest.approx(expected)


def test_the_report_has_both() -> None:
    solver = make_solver("memoir-paper", {})
    entry = trained(rounds=1).errors[0]._asdict()
    report = solver.report([{"epoch": 1, **entry}])
    assert report["oracle"] == [entry]
    assert len(report["inexact_margin"]) == 3
