"""Timeline: written as batches end, readable at any moment and after a kill; load balance."""

from __future__ import annotations

import pytest

from xcray.schedule.events import Task
from xcray.workers.timeline import (
    DONE,
    DUPLICATE,
    LOST,
    SCHEMA,
    Span,
    Timeline,
    balance,
    read_streams,
)


def span(
    number: int,
    *,
    worker: str = "a",
    started: float = 0.0,
    seconds: float = 1.0,
    outcome: str = DONE,
) -> Span:
    """Return one batch of two labels."""
    return Span(
        worker,
        Task(number, (2 * number, 2 * number + 1), 0.5, 1),
        started,
        seconds,
        outcome,
        cpu_seconds=seconds / 2 if outcome == DONE else 0.0,
    )


def test_every_row_comes_back_and_attempts_have_numbers(tmp_path):
    for attempt in (1, 2):
        with Timeline(tmp_path) as timeline:
            assert timeline.attempt == attempt
            for number in range(3):
                timeline.add(span(number, started=number))
    rows = read_streams(tmp_path).to_pylist()
    assert [row["attempt_of_run"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert rows[4] == {
        "attempt_of_run": 2,
        "worker": "a",
        "task": 1,
        "attempt": 1,
        "n_labels": 2,
        "cost": 0.5,
        "started": 1.0,
        "seconds": 1.0,
        "cpu_seconds": 0.5,
        "certified": 0,
        "outcome": "done",
        "labels": [2, 3],
        "node": "",
    }


def test_rows_are_there_while_it_is_written(tmp_path):
    with Timeline(tmp_path) as timeline:
        timeline.add(span(0, started=5.0))
        assert read_streams(tmp_path).num_rows == 1
        for number in range(1, 10):
            timeline.add(span(number, started=5.0 + number / 20))
        assert read_streams(tmp_path).num_rows == 1  # less than a second has passed
        timeline.add(span(10, started=6.5))
        assert read_streams(tmp_path).num_rows == 11


def test_a_stream_that_was_cut_anywhere_is_read_up_to_the_cut(tmp_path):
    with Timeline(tmp_path) as timeline:
        for number in range(5):
            timeline.add(span(number, started=2.0 * number))
    (stream,) = tmp_path.glob("timeline-*.arrows")
    whole, counts = stream.read_bytes(), []
    for size in (*range(0, len(whole), 41), len(whole)):
        stream.write_bytes(whole[:size])
        rows = read_streams(tmp_path).to_pylist()
        assert [row["task"] for row in rows] == list(range(len(rows)))
        counts.append(len(rows))
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 5
    with Timeline(tmp_path) as timeline:  # the next attempt has a file of its own
        assert timeline.attempt == 2
        timeline.add(span(9))
    assert read_streams(tmp_path).num_rows == counts[-1] + 1


def test_the_spread_of_the_work_by_hand(tmp_path):
    with Timeline(tmp_path) as timeline:  # two workers, 4 s; b does one batch twice
        timeline.add(span(0, started=1.0, seconds=4.0))
        timeline.add(span(1, worker="b", started=1.0, seconds=2.0))
        timeline.add(span(2, worker="b", started=3.0, seconds=1.0, outcome=DUPLICATE))
    with Timeline(tmp_path) as timeline:  # after a resume, another 2 s; b is lost
        timeline.add(span(0, started=0.0, seconds=2.0))
        timeline.add(span(1, worker="b", started=0.0, seconds=0.5, outcome=LOST))
    assert balance(read_streams(tmp_path), workers=2) == {
        "batches": 3,
        "busy_share": {"a": 1.0, "b": round(3.5 / 6, 4)},
        "makespan": 6.0,
        "makespan_over_ideal": 1.5,  # 12 worker-seconds for 8 that counted
        "core_seconds": 4.0,  # the processor was busy half of the time
        "work_lost_seconds": 1.5,
    }


def test_nothing_recorded_is_no_error(tmp_path):
    assert read_streams(tmp_path).schema == SCHEMA
    assert balance(read_streams(tmp_path), workers=4)["makespan_over_ideal"] == pytest.approx(1.0)


def test_rows_name_the_node_of_their_worker(tmp_path):
    with Timeline(tmp_path, lambda: {"a": "10.0.0.1/abc"}) as timeline:
        timeline.add(span(0))
        timeline.add(span(1)._replace(worker="b"))
    rows = read_streams(tmp_path).to_pylist()
    assert [(row["worker"], row["node"]) for row in rows] == [("a", "10.0.0.1/abc"), ("b", "")]
