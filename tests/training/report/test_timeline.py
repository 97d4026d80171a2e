"""Timelines: reading, sums, thinning to a bounded document, and costs per label."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from tests.support.report_data import batch, table
from xcray.errors import Corrupt, NotFound
from xcray.storage.arrow import write_table
from xcray.training.report.timeline import (
    COLUMNS,
    label_costs,
    normalize_timeline,
    read_timeline,
    timeline_document,
)

ENTRY = {
    "attempt_of_run",
    "worker",
    "outcome",
    "task",
    "attempt",
    "batches",
    "n_labels",
    "certified",
    "cost",
    "started",
    "ended",
    "seconds",
}


def busy_run(rng: np.random.Generator, n_workers: int, n_batches: int) -> pa.Table:
    """Return a timeline with losses and duplicates, and pauses after losses."""
    rows = []
    for w in range(n_workers):
        t = float(rng.random())
        for task in range(n_batches):
            outcome = str(rng.choice(["done", "duplicate", "lost"], p=[0.9, 0.06, 0.04]))
            seconds = float(rng.gamma(4.0, 0.06))
            rows.append(
                batch(
                    f"w-{w}",
                    t,
                    seconds,
                    outcome,
                    task=task,
                    n_labels=int(rng.integers(1, 50)),
                    attempt_of_run=1 + w % 2,
                )
            )
            t += seconds + (1.0 if outcome == "lost" else 0.01)
    return table(*rows)


def test_a_document_by_hand():
    rows = [
        batch("w-10", 0.5, 1.0),
        batch("w-2", 0.5, 2.0, task=1, n_labels=5),
        batch("w-2", 2.5, 0.5, "duplicate", task=2),
        batch("w-2", 1.0, 1.0, task=3, attempt_of_run=2),
    ]
    result = timeline_document(table(*rows))
    assert result["attempts"] == [
        {"attempt_of_run": 1, "begins": 0.0, "first": 0.5, "span": 2.5, "workers": 2},
        {"attempt_of_run": 2, "begins": 2.5, "first": 1.0, "span": 1.0, "workers": 1},
    ]
    none = {"duplicate": 0, "lost": 0, "stopped": 0}
    assert result["workers"] == [
        {
            "worker": "w-2",
            "node": "",
            "batches": 3,
            "n_labels": 15,
            "busy": 3.5,
            "share": 1.0,
            **none,
            "duplicate": 1,
        },
        {
            "worker": "w-10",
            "node": "",
            "batches": 1,
            "n_labels": 10,
            "busy": 1.0,
            "share": 0.4,
            **none,
        },
    ]
    assert [(e["worker"], e["started"], e["ended"]) for e in result["batches"][:2]] == [
        ("w-10", 0.5, 1.5),
        ("w-2", 0.5, 2.5),
    ]
    assert (result["n_labels"], result["batches_total"], result["thinned"]) == (25, 4, False)
    assert (result["makespan"], result["core_seconds"]) == (3.5, 4.0)
    assert result["busy_share"] == pytest.approx(4.5 / (2 * 2.5 + 1.0))


@pytest.mark.parametrize("limit", [10_000, 300, 60, 12, 3])
def test_thinned_documents_are_bounded_and_their_sums_exact(rng, limit):
    whole = busy_run(rng, 6, 60)
    result = timeline_document(whole, limit)
    assert set(result["batches"][0]) == ENTRY
    assert len(result["batches"]) <= limit
    assert result["thinned"] == (limit < whole.num_rows)
    assert all(
        e["started"] <= e["ended"] and e["seconds"] <= e["ended"] - e["started"] + 1e-9
        for e in result["batches"]
    )
    if limit >= 36:  # attempts x workers x outcomes: no combination is left out
        for name in ("seconds", "n_labels", "cost"):
            assert sum(e[name] for e in result["batches"]) == pytest.approx(
                sum(whole.column(name).to_pylist())
            )
        for outcome in ("done", "duplicate", "lost"):
            several = sum(e["batches"] for e in result["batches"] if e["outcome"] == outcome)
            assert several == whole.column("outcome").to_pylist().count(outcome)
    if 300 >= limit >= 60:
        assert len(result["batches"]) > limit / 8
    json.dumps(result, allow_nan=False)


def test_distant_batches_are_separate_entries():
    rows = [batch(started=float(t), seconds=0.9) for t in range(10)] + [
        batch(started=100.0 + t, seconds=1.0) for t in range(10)
    ]
    rows.insert(5, batch(started=4.9, seconds=0.1, outcome="lost"))
    result = timeline_document(table(*rows), limit=10)
    assert len(result["batches"]) <= 10
    assert not [e for e in result["batches"] if e["started"] < 50 < e["ended"]]
    assert [e["batches"] for e in result["batches"] if e["outcome"] == "lost"] == [1]


def test_missing_and_damaged_timelines(tmp_path):
    whole = table(batch("a", 0.0, 1.0))
    assert normalize_timeline(whole).schema == pa.schema(COLUMNS)
    empty = timeline_document(whole.slice(0, 0))
    assert (empty["batches"], empty["workers"], empty["makespan"], empty["busy_share"]) == (
        [],
        [],
        0,
        0.0,
    )
    with pytest.raises(NotFound, match="no timeline"):
        read_timeline(tmp_path)
    write_table(tmp_path / "timeline.arrow", whole)
    assert read_timeline(tmp_path).num_rows == 1
    write_table(tmp_path / "timeline.arrow", whole.drop_columns(["outcome"]))
    with pytest.raises(Corrupt, match="no column outcome"):
        read_timeline(tmp_path)


def test_seconds_are_shared_out_by_work():
    rows = table(
        batch("a", seconds=4.0, labels=[3, 1]),
        batch("b", seconds=1.0, labels=[0, 2], outcome="lost"),
        batch("b", seconds=2.0, labels=[0]),
        batch("c", seconds=5.0, labels=[0, 7], attempt_of_run=2),
        batch("c", seconds=1.0, labels=[8, 9]),
    )
    seconds, worker = label_costs(
        rows, np.array([0, 1, 2, 3, 8, 9]), [6.0, 1.0, 5.0, 3.0, 0.0, 0.0]
    )
    # Label 7 is not requested; 8 and 9 share equally.
    np.testing.assert_allclose(seconds, [5.0, 1.0, np.nan, 3.0, 0.5, 0.5])
    assert worker == ["c", "a", None, "a", "c", "c"]
    for unknown in (None, rows.drop_columns("labels"), rows.slice(0, 0)):
        seconds, worker = label_costs(unknown, [0, 1], [1.0, 1.0])
        assert np.isnan(seconds).all()
        assert worker == [None, None]
