"""DS-MLR trainings: checkpoints, time limits, histories, jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.support.small_trainings import References, kill, once_at, spec_of
from xcray.data.dataset import Dataset
from xcray.data.weights import set_weights
from xcray.errors import Conflict, InputError, Refused, Stopped
from xcray.jobs.home import Home
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.states import PENDING, SUCCEEDED
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.solvers import make_solver
from xcray.storage import checkpoints
from xcray.system.blas_threads import limit_blas_threads
from xcray.training import train
from xcray.training.edit.labels import remove_labels, retrain_labels
from xcray.training.epoch_strategy import thin_history
from xcray.workers import calls
from xcray.workers.pool import StopFlag

QUICK = MonitorOptions(lease_seconds=600.0, heartbeat_seconds=0.05, report_seconds=0.02)


@pytest.fixture(scope="module")
def trained(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> References:
    """Return the results on one thread."""
    return References(tiny, tmp_path_factory.mktemp("mlr"))


def test_what_dropping_small_weights_costs_is_reported(
    tiny: Dataset, trained: References, tmp_path: Path
) -> None:
    spec = spec_of(tiny, "dsmlr", params={"prune_keep": 3})
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    whole, report = trained["dsmlr"].report, result.report
    assert report["weights"] + report["weights_pruned"] == whole["weights"]
    assert report["weights"] <= 3 * tiny.n_labels
    export = report["export"]["P@1"]
    assert export["published"] == result.measures["P@1"]
    assert export["full"] == whole["export"]["P@1"]["full"] == trained["dsmlr"].measures["P@1"]
    assert export["loss"] == pytest.approx(export["full"] - export["published"], abs=1e-6)
    assert export["loss"] > 0.0


@contextmanager
def kept_often() -> Iterator[None]:
    """Write a checkpoint at every sync point."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "seconds_between", lambda _: 0.0)
        yield


def test_long_histories_are_thinned() -> None:
    history = [{"epoch": each} for each in range(1, 1202)]
    selection = [each["epoch"] for each in thin_history(history, 500)]
    assert selection == list(range(1, 1202, 3)) + ([1201] if (1201 - 1) % 3 else [])
    assert (selection[0], selection[-1]) == (1, 1201)
    assert thin_history([], 500) == []
    assert thin_history(history[:7], 500) == history[:7]


def test_a_resumed_run_keeps_its_grid(tiny: Dataset, tmp_path: Path) -> None:
    open_grid, stop = {"shards": 0, "blocks": 0, "tolerance": 1e-2}, StopFlag()
    spec = spec_of(tiny, "dsmlr", params=open_grid, pool="threads", workers=2)
    with kept_often(), pytest.raises(Stopped):
        train(
            spec,
            run_dir=tmp_path / "run",
            out=tmp_path / "model",
            progress=once_at(2, stop.set),
            stop=stop,
        )
    result = train(replace(spec, workers=3), run_dir=tmp_path / "run", out=tmp_path / "model")
    alone = train(spec, run_dir=tmp_path / "alone", out=tmp_path / "other")
    assert result.report["grid"] == alone.report["grid"]
    fresh = make_solver("dsmlr", spec.params).grid(
        tiny.train.n_rows, tiny.n_labels, tiny.n_features, 3
    )
    assert result.report["grid"] != fresh._asdict()  # the default grid of three workers
    assert result.sha256 == alone.sha256
    with pytest.raises(Conflict, match="other params"):
        train(
            spec_of(tiny, "dsmlr", params={"lam": 0.5}),
            run_dir=tmp_path / "run",
            out=tmp_path / "third",
        )


def test_when_time_is_up_the_model_is_whole(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(calls, "time", clock)

    def progress(step: Any) -> None:
        ahead[0] = 1e6 if step.newest.get("epoch", 0) >= 2 else 0.0

    spec = spec_of(tiny, "dsmlr", params={"epochs": 1000, "tolerance": 0.0}, max_seconds=3600.0)
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "model", progress=progress)
    assert "time" in result.report["stopped"]
    assert 2 <= result.report["epochs"] < 1000
    assert "partial" not in result.report
    assert Model.open(tmp_path / "model").label_table.num_rows == tiny.n_labels
    assert result.measures["P@1"] > 0.3
    ahead[0] = 1e6
    with pytest.raises(Refused, match="no epoch was done"):
        train(spec, run_dir=tmp_path / "second", out=tmp_path / "other")


def test_weights_of_rows_count(tiny: Dataset, trained: References, tmp_path: Path) -> None:
    twice = set_weights(tiny, np.full(tiny.train.n_rows, 2.0, np.float32), tmp_path / "twice")
    other = set_weights(
        tiny, np.linspace(0.5, 4.0, tiny.train.n_rows).astype(np.float32), tmp_path / "other"
    )
    runs = [
        train(spec_of(data, "dsmlr"), run_dir=tmp_path / f"{i}", out=tmp_path / f"m{i}")
        for i, data in enumerate((twice, other))
    ]
    models = [Model.open(result.model_path) for result in (trained["dsmlr"], *runs)]
    # Only the ratios of weights count.
    np.testing.assert_array_equal(models[0].W.data, models[1].W.data)
    assert not np.array_equal(models[0].W.data, models[2].W.data)


def test_unsupported_operations_are_refused_with_a_fix(
    tiny: Dataset, trained: References, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="train the whole model again"):
        retrain_labels(
            trained["dsmlr"].model_path, tiny.path, tmp_path / "out", [tiny.label_names[0]]
        )
    fewer = remove_labels(trained["dsmlr"].model_path, tmp_path / "fewer", [tiny.label_names[0]])
    assert Model.open(fewer.model_path).link == "softmax"


def test_a_softmax_model_can_be_calibrated(tiny: Dataset, tmp_path: Path) -> None:
    """Rows have several labels: curves give the chance of each, and softmax only its share."""
    result = train(
        spec_of(tiny, "lc", calibrate=True), run_dir=tmp_path / "run", out=tmp_path / "model"
    )
    assert Predictor(Model.open(result.model_path)).probability_source == "curves"
    assert "ECE@1" in result.measures


def test_a_job_goes_on_after_a_kill(tiny: Dataset, trained: References, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    store = JobStore(home.store_url)
    try:
        spec = spec_of(tiny, "dsmlr")
        job = store.jobs.submit(
            JobSubmission({**spec.as_dict(), "name": "soft", "dataset_id": "ds_1"}, name="soft")
        )[0]
        store.attempts.claim("test", lease_seconds=600)
        kill(spec, home.run(job.id), 4)  # the runner dies during the training
        assert store.attempts.mark_lost(job.id, 1).status == PENDING
        store.attempts.claim("test", lease_seconds=600)
        assert run_attempt(store, home, job.id, 2, options=QUICK) == SUCCEEDED
        record = store.jobs.get(job.id)
        assert record.result["sha256"] == trained["dsmlr"].sha256
        objectives = [
            event.data["objective"]
            for event in store.jobs.list_events(job.id)
            if event.kind == "epoch"
        ]
        whole = [each["objective"] for each in trained["dsmlr"].report["history"]]
        assert objectives == whole[-len(objectives) :]
        assert len(objectives) < len(whole)
    finally:
        store.close()


def test_products_take_one_core_each() -> None:
    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(limits=2, user_api="blas"):
        with limit_blas_threads():
            assert threads() == {1}
        assert threads() == {2}
