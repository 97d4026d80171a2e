"""The loop around programs: the same bits from each round, damage, losses, time limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.group_programs import copied
from tests.support.moving_group import Moving
from tests.support.small_trainings import (
    DISTINCT,
    PARAMS,
    References,
    compare,
    kill,
    once_at,
    spec_of,
)
from xcray.data.dataset import Dataset
from xcray.errors import Stopped
from xcray.solvers import SOLVERS, make_solver
from xcray.solvers.group_contract import Round
from xcray.solvers.memoir.margin_errors import OracleErrors
from xcray.storage import checkpoints
from xcray.storage.checkpoints import TrainingState
from xcray.training import TrainSpec, group_training, train
from xcray.training.epoch_strategy import training_rows
from xcray.training.group_workers import RowWorkerFactory
from xcray.workers.calls import GroupCalls
from xcray.workers.local_group import SerialGroup, ThreadGroup
from xcray.workers.pool import StopFlag

GROUP = [
    name
    for name in PARAMS
    if SOLVERS[name].family == "group" and not hasattr(SOLVERS[name], "time_sweep")
]
TIMED = ("queries_per_second", "build_seconds")  # of the searches of MEMOIR
each_solver = pytest.mark.parametrize("solver", GROUP)
drill = partial(pytest.param, marks=pytest.mark.drill)
each_way = pytest.mark.parametrize("solver", [name for name in GROUP if name in DISTINCT])


@pytest.fixture(scope="module")
def references(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> References:
    """Return the results on one thread."""
    return References(tiny, tmp_path_factory.mktemp("references"))


def rounds_of(data: Dataset, solver: str, state: TrainingState | None = None) -> Iterator[Round]:
    """Yield the rounds of a small training with two workers, with copied states."""
    made, rows = make_solver(solver, PARAMS[solver]), training_rows(data)
    layout = made.layout(2, True, rows)
    group = SerialGroup(RowWorkerFactory(made, rows, layout), layout.workers)
    group.open()
    for done in made.program(GroupCalls(group), rows, state):
        yield done._replace(state=copied(done.state), staged=None)


def without_times(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays of a state; those of MEMOIR's searches without the columns of times."""
    columns = [OracleErrors._fields.index(name) for name in TIMED]
    return {
        key: np.delete(value, columns, axis=1) if key == "oracle" else value
        for key, value in arrays.items()
    }


def bits(done: Round) -> Any:
    """Return everything that a round yields, as comparable values."""
    arrays = {
        (name, key): (value.dtype.str, value.shape, value.tobytes())
        for name, get in done.state.groups.items()
        for key, value in without_times(get()).items()
    }
    held_out = None if done.held_out is None else done.held_out.scores.tobytes()
    entry = {name: value for name, value in done.entry.items() if name not in TIMED}
    return done.number, done.state.note, entry, arrays, held_out, done.ratio


@each_solver
def test_from_each_round_it_goes_on_with_the_same_bits(tiny: Dataset, solver: str) -> None:
    whole = list(rounds_of(tiny, solver))
    assert [done.number for done in whole] == list(range(1, len(whole) + 1))
    for done in whole:
        rest = rounds_of(tiny, solver, done.state)
        expected = whole[done.number : done.number + 2]
        following = [bits(one) for one, _ in zip(rest, range(2), strict=False)]
        assert following == [bits(one) for one in expected], f"after round {done.number}"


@each_way
def test_a_damaged_checkpoint_costs_one_round(
    tiny: Dataset,
    references: References,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    solver: str,
) -> None:
    monkeypatch.setattr(checkpoints, "seconds_between", lambda _: 0.0)
    spec, stop, done = spec_of(tiny, solver), StopFlag(), list[int]()
    number = min(3, max(2, references[solver].report["epochs"] - 1))
    folders = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    with pytest.raises(Stopped):
        train(spec, **folders, progress=once_at(number, stop.set), stop=stop)
    newest = max((tmp_path / "run").glob("checkpoints/checkpoint-*"))
    damaged = max(newest.glob("*.arrow"), key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    result = train(
        spec,
        **folders,
        progress=lambda step: done.append(step.done) if step.phase == "TRAINING" else None,
    )
    assert done[0] == int(newest.name[-6:])  # the round is repeated
    assert result.report["damaged_checkpoints"] == [newest.name]
    assert result.sha256 == references[solver].sha256


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[ThreadGroup]:
    """Run the workers of Ray trainings in threads of this process; return their groups."""
    made: list[ThreadGroup] = []

    def make_group(spec: TrainSpec, factory: Any, workers: int, *_: Any) -> ThreadGroup:
        made.append(ThreadGroup(factory, workers))
        return made[-1]

    monkeypatch.setattr(group_training, "make_worker_group", make_group)
    return made


@pytest.mark.parametrize(
    ("solver", "saves"),
    [
        *((name, True) for name in GROUP if name in DISTINCT),
        *((name, False) for name in ("memoir", "pdsparse")),  # their workers have the weights
    ],
)
def test_after_the_loss_of_a_worker_the_model_is_the_same(
    tiny: Dataset,
    references: References,
    groups: list[ThreadGroup],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    solver: str,
    saves: bool,
) -> None:
    """Two workers, of which the last one is lost after the first round."""
    monkeypatch.setattr(checkpoints, "seconds_between", lambda _: 0.0 if saves else 1e9)
    result = train(
        spec_of(tiny, solver, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        progress=once_at(1, lambda: groups[0].simulate_loss(groups[0].workers[-1])),
    )
    assert result.report["workers_lost"] == 1
    compare(solver, result, references[solver])


@pytest.mark.parametrize(
    "solver",
    [
        name if name in ("lbfgs", "generalized-least-squares") else drill(name)
        for name in GROUP
        if name in DISTINCT
    ],
)
def test_a_kill_after_a_saved_round_changes_no_bit(
    tiny: Dataset, references: References, tmp_path: Path, solver: str
) -> None:
    """Momentum and the history of L-BFGS are in the checkpoint."""
    spec, done = spec_of(tiny, solver), list[int]()
    kill(spec, tmp_path / "run", 2)
    result = train(
        spec,
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        progress=lambda step: done.append(step.done) if step.phase == "TRAINING" else None,
    )
    assert done[0] == 3  # no round is repeated
    assert result.sha256 == references[solver].sha256


@each_way
def test_it_goes_on_with_another_number_of_workers(
    tiny: Dataset,
    references: References,
    groups: list[ThreadGroup],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    solver: str,
) -> None:
    monkeypatch.setattr(checkpoints, "seconds_between", lambda _: 0.0)
    spec, stop = spec_of(tiny, solver, pool="ray", workers=3), StopFlag()
    folders = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    with pytest.raises(Stopped):
        train(spec, **folders, progress=once_at(1, stop.set), stop=stop)
    result = train(replace(spec, workers=2), **folders)
    first, second = (len(group.workers) for group in groups)
    assert (first, second) in ((3, 2), (1, 1))  # PD-Sparse has one
    compare(solver, result, references[solver])


def test_stages_whose_last_checkpoints_are_damaged_are_fitted_again(
    tiny: Dataset, references: References, tmp_path: Path
) -> None:
    spec, run = spec_of(tiny, "stagewise"), tmp_path / "run"
    train(spec, run_dir=run, out=tmp_path / "model")
    before = sorted(run.glob("checkpoints/*"))
    again = train(spec, run_dir=run, out=tmp_path / "again")
    assert again.sha256 == references["stagewise"].sha256
    assert sorted(run.glob("checkpoints/*")) == before  # nothing was trained
    for note in run.glob("checkpoints/*/checkpoint.json"):
        note.write_text("{}")
    third = train(spec, run_dir=run, out=tmp_path / "third")
    assert third.sha256 == references["stagewise"].sha256


def test_a_lost_node_costs_the_rounds_since_the_last_checkpoint(
    tiny: Dataset, references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LC's weights stay on the workers, and a local group simulates the loss of a node."""
    monkeypatch.setattr(checkpoints, "seconds_between", lambda _: 0.0)
    instance, lost, notes = list[Any](), list[int](), list[str]()
    build = group_training.make_worker_group
    monkeypatch.setattr(
        group_training,
        "make_worker_group",
        lambda *args: instance.append(build(*args)) or instance[-1],
    )

    def progress(step: Any) -> None:
        notes.extend([step.note] if "lost" in step.note else [])
        if step.newest.get("epoch") == 4 and not lost:
            lost.append(4)
            instance[-1].simulate_loss("worker-1", with_objects=True)

    spec = spec_of(tiny, "lc", pool="threads", workers=2)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", progress=progress)
    assert lost
    assert result.report["workers_lost"] == 1
    assert notes[0].endswith("a node was lost: going on from the last checkpoint (epoch 4)")
    epochs = [each["epoch"] for each in result.report["history"]]
    assert epochs == list(range(1, len(epochs) + 1))
    compare("lc", result, references["lc"])


@pytest.mark.parametrize(
    ("solver", "wait"),
    [
        ("lbfgs", 1e9),
        ("lbfgs", 0.0),
        ("memoir", 1e9),
        drill("lc", 1e9),
        drill("generalized-least-squares", 1e9),
    ],
)
def test_workers_that_come_and_go_between_rounds_change_no_bit(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solver: str, wait: float
) -> None:
    """One worker does the work of three; two join, and the node of the first one is left.

    wait: seconds between two checkpoints, of which none or each is due after a round.
    """
    monkeypatch.setattr(checkpoints, "seconds_between", lambda _: wait)
    spec, groups, notes = spec_of(tiny, solver, pool="ray", workers=3), list[Moving](), list[str]()
    began = iter((3, 1))

    def make_group(spec: TrainSpec, factory: Any, workers: int, *_: Any) -> Moving:
        groups.append(Moving(factory, workers, next(began)))
        return groups[-1]

    def progress(step: Any) -> None:
        notes.extend([step.note] if step.note else [])
        if step.phase == "TRAINING" and step.done >= 2:
            groups[-1].room = ["worker-1", "worker-2"]
        if step.phase == "TRAINING" and step.done >= 3:
            groups[-1].going = {"worker-0": 1e9}

    monkeypatch.setattr(group_training, "make_worker_group", make_group)
    whole = train(spec, run_dir=tmp_path / "whole", out=tmp_path / "model")
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "moved", progress=progress)
    assert groups[0].changes == []
    assert groups[1].changes == ["came worker-1 worker-2", "left worker-0"]
    assert any("worker-1, worker-2 joined" in note for note in notes)
    assert result.sha256 == whole.sha256
    assert result.report["workers_lost"] == 0


@each_way
def test_rounds_end_when_time_is_up(tiny: Dataset, tmp_path: Path, solver: str) -> None:
    spec = spec_of(tiny, solver, max_seconds=1e-3)
    report = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model").report
    if report["epochs"] < SOLVERS[solver](**PARAMS[solver]).stopping.limit:
        assert (report["epochs"], report["stopped"]) == (1, "the time of 0.001 s was up")
