"""MEMOIR on threads and on several workers: the same bits, losses, kills and resumes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xcray.data.dataset import Dataset
from xcray.errors import Refused, Stopped
from xcray.solvers.memoir import state
from xcray.telemetry.progress import Progress
from xcray.training import TrainResult, TrainSpec, replicated, train
from xcray.workers.local_group import ThreadGroup
from xcray.workers.pool import StopFlag
from xcray.workers.ray.local_cluster import local_ray

PARAMS: dict[str, Any] = {
    "rounds": 12,
    "batch": 200,
    "group": 32,
    "early_stopping_rounds": 10,
    "average_from": 4,
    "row_norm": "l2",
}


@pytest.fixture(scope="module")
def reference(
    tiny: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainSpec, TrainResult]:
    """Return the specification and the result of a serial training."""
    folder = tmp_path_factory.mktemp("reference")
    spec = TrainSpec(str(tiny.path), solver="memoir", pool="serial", params=PARAMS)
    return spec, train(spec, run_dir=folder / "run", out=folder / "model")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start a local Ray with room for four workers."""
    with local_ray(num_cpus=4) as cluster:
        yield cluster


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[ThreadGroup]:
    """Run the workers of Ray trainings in threads of this process; return their groups."""
    made: list[ThreadGroup] = []

    def make_group(spec: TrainSpec, factory: Any, workers: int, *_: Any) -> ThreadGroup:
        made.append(ThreadGroup(factory, workers))
        return made[-1]

    monkeypatch.setattr(replicated, "make_worker_group", make_group)
    return made


def at_round(number: int, act: Callable[[], None]) -> Callable[[Progress], None]:
    """Return a receiver of progress that acts once, after round `number`."""
    acted: list[int] = []

    def receive(progress: Progress) -> None:
        if progress.phase == "TRAINING" and progress.done >= number and not acted:
            acted.append(progress.done)
            act()

    return receive


def test_threads_search_a_group_together(
    reference: tuple[TrainSpec, TrainResult], tmp_path: Path
) -> None:
    spec, result = reference
    other = train(
        replace(spec, pool="threads", workers=3), run_dir=tmp_path / "run", out=tmp_path / "model"
    )
    assert other.sha256 == result.sha256


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_with_all_weights_give_the_same_bits(
    reference: tuple[TrainSpec, TrainResult],
    groups: list[ThreadGroup],
    tmp_path: Path,
    workers: int,
) -> None:
    spec, result = reference
    seen: list[int] = []
    other = train(
        replace(spec, pool="ray", workers=workers),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        progress=lambda p: seen.append(p.done) if p.phase == "TRAINING" else None,
    )
    assert [len(group.workers) for group in groups] == [workers]
    assert other.sha256 == result.sha256
    assert other.report["stopped"] == result.report["stopped"]
    assert other.report["workers_lost"] == 0
    assert set(range(1, 12)) <= set(seen)  # progress by rounds


@pytest.mark.parametrize("interval", [0.0, 1e9], ids=["with checkpoints", "without"])
@pytest.mark.parametrize("worker", ["worker-0", "worker-1"])
def test_after_the_loss_of_a_worker_all_go_back_to_the_checkpoint(
    reference: tuple[TrainSpec, TrainResult],
    groups: list[ThreadGroup],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    interval: float,
    worker: str,
) -> None:
    monkeypatch.setattr(state, "CHECKPOINT_SECONDS", interval)
    monkeypatch.setattr(state, "FIRST_SECONDS", interval)
    spec, result = reference
    other = train(
        replace(spec, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        progress=at_round(5, lambda: groups[0].simulate_loss(worker)),
    )
    assert other.report["workers_lost"] == 1
    assert other.sha256 == result.sha256


def test_a_training_resumes_on_another_number_of_workers(
    reference: tuple[TrainSpec, TrainResult],
    groups: list[ThreadGroup],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(state, "CHECKPOINT_SECONDS", 0.0)
    spec, result = reference
    paths = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    for workers, number in ((2, 4), (3, 8)):
        stop, done = StopFlag(), at_round(number, lambda: stop.set())  # noqa: B023
        with pytest.raises(Stopped):
            train(replace(spec, pool="ray", workers=workers), **paths, progress=done, stop=stop)
    saved = int(state.read_arrays(tmp_path / "run" / "memoir.arrow")["numbers"][0])
    assert 8 <= saved < 12
    assert train(spec, **paths).sha256 == result.sha256


def test_a_time_limit_ends_it_and_the_next_run_continues(
    reference: tuple[TrainSpec, TrainResult],
    groups: list[ThreadGroup],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(state, "CHECKPOINT_SECONDS", 0.0)
    spec, result = reference
    limited = replace(spec, pool="ray", workers=2, max_seconds=1e-3)
    paths = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    with pytest.raises(Refused, match="time"):
        train(limited, **paths)
    monkeypatch.undo()
    assert train(spec, **paths).sha256 == result.sha256


def test_samples_that_change_weights_one_by_one_need_one_worker(
    reference: tuple[TrainSpec, TrainResult], groups: list[ThreadGroup], tiny: Dataset
) -> None:
    from xcray.solvers import make_solver
    from xcray.training.independent import IndependentLabels
    from xcray.training.strategies import make_strategy
    from xcray.training.strategy import TrainingContext

    spec = replace(reference[0], pool="ray", workers=2)
    for params in ({"group": 1}, {"group": 10, "oracle": "lsh"}):
        solver = make_solver("memoir", params)
        strategy = make_strategy(TrainingContext(spec, tiny, solver, tiny.path, "job"))
        assert type(strategy) is IndependentLabels
        assert strategy.workers == 1


@pytest.mark.drill
def test_ray_workers_give_the_same_bits(
    reference: tuple[TrainSpec, TrainResult], tmp_path: Path, ray: Any
) -> None:
    spec, result = reference
    for workers in (1, 2, 4):
        out, job = tmp_path / str(workers), f"memoir-{workers}"
        other = replace(spec, pool="ray", workers=workers)
        trained = train(other, run_dir=out.with_suffix(".run"), out=out, job=job)
        assert trained.sha256 == result.sha256


@pytest.mark.drill
def test_kill_minus_nine_of_a_worker_changes_no_bit(
    reference: tuple[TrainSpec, TrainResult], tmp_path: Path, ray: Any
) -> None:
    spec, result = reference
    killed: list[int] = []

    def kill() -> None:
        import ray as connected

        actor = connected.get_actor("xcray:killed:worker-1")
        killed.append(connected.get(actor.pid.remote()))
        os.kill(killed[0], signal.SIGKILL)

    other = train(
        replace(spec, pool="ray", workers=2),
        run_dir=tmp_path / "run",
        out=tmp_path / "model",
        job="killed",
        progress=at_round(3, kill),
    )
    assert len(killed) == other.report["workers_lost"] == 1
    assert other.sha256 == result.sha256


def _train_and_die(spec: TrainSpec, folder: Path) -> None:
    """Train in this process, which is killed after round 5; every round is saved."""
    state.CHECKPOINT_SECONDS = 0.0
    die = at_round(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
    train(spec, run_dir=folder / "run", out=folder / "model", job="dies", progress=die)


@pytest.mark.drill
def test_kill_minus_nine_of_the_driver_changes_no_bit(
    reference: tuple[TrainSpec, TrainResult], tmp_path: Path, ray: Any
) -> None:
    spec, result = reference
    spec = replace(spec, pool="ray", workers=2)
    process = multiprocessing.get_context("spawn").Process(
        target=_train_and_die, args=(spec, tmp_path)
    )
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    again = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", job="again")
    assert again.sha256 == result.sha256
