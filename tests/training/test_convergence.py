"""Every training says why it ended, and warns if it ended without its tolerance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.estimators import DSMLR, LeastSquares, PPDSparse
from xcray.jobs.home import Home
from xcray.jobs.runner.main import run_attempt
from xcray.jobs.runner.monitor import MonitorOptions
from xcray.jobs.store.job_store import JobStore
from xcray.jobs.store.jobs import JobSubmission
from xcray.solvers import BUILT_IN, make_solver
from xcray.training import TrainResult, TrainSpec, train

# one round and a tolerance that no round reaches; MEMOIR has no tolerance
HASTY: dict[str, dict[str, Any]] = {
    name: dict(zip(make_solver(name, {}).stopping.names, (1e-12, 1), strict=True))
    for name in BUILT_IN
    if make_solver(name, {}).stopping.threshold > 0.0
}
each_solver = pytest.mark.parametrize("solver", sorted(HASTY))


def spec_of(data: Dataset, solver: str, params: dict[str, Any]) -> TrainSpec:
    """Return the specification of a training on one thread."""
    return TrainSpec(dataset=str(data.path), solver=solver, params=params, pool="serial")


@pytest.fixture(scope="module")
def hasty(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    """Return the result of one round of each solver."""
    folder = tmp_path_factory.mktemp("hasty")
    return {
        name: train(spec_of(tiny, name, params), run_dir=folder / f"{name}.run", out=folder / name)
        for name, params in HASTY.items()
    }


@each_solver
def test_a_limit_that_is_too_small_is_a_warning(hasty: dict[str, TrainResult], solver: str) -> None:
    report = hasty[solver].report
    assert report["stopped"]
    assert not report["converged"]
    warning, *others = report["warnings"]
    assert warning["code"] == "NOT_CONVERGED"
    assert {other["code"] for other in others} <= {"BELOW_BASELINE"}
    threshold, limit = make_solver(solver, {}).stopping.names
    assert report["stopped"] in warning["message"]
    assert f"raise {limit} or {threshold}" in warning["message"]


@each_solver
def test_a_training_that_reaches_its_tolerance_warns_of_nothing(
    tiny: Dataset, tmp_path: Path, solver: str
) -> None:
    threshold, _ = make_solver(solver, {}).stopping.names
    params = {threshold: 0.01, **({"lam": 1e-2} if solver in ("dsmlr", "lbfgs", "lc") else {})}
    report = train(
        spec_of(tiny, solver, params), run_dir=tmp_path / "run", out=tmp_path / "model"
    ).report
    assert (report["converged"], report["warnings"]) == (True, [])
    assert make_solver(solver, params).stopping.reached in report["stopped"]


def test_no_tolerance_was_asked_for() -> None:
    rule = make_solver("dsmlr", {"tolerance": 0.0, "epochs": 3}).stopping
    assert rule.is_met("all 3 epochs are done")


def test_the_command_line_and_the_report_say_why(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    words = ["train", str(tiny.path), "--out", str(out), "--solver", "lbfgs", "--pool", "serial"]
    assert main([*words, "-p", "max_iterations=1"]) == 0
    printed = capsys.readouterr()
    assert "ended: after 1 rounds" in printed.out
    assert "warning NOT_CONVERGED: the training ended without its tolerance" in printed.err
    assert main(["report", str(out), "--out", str(tmp_path / "page"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["warnings"][0]["code"] == "NOT_CONVERGED"


def test_the_record_of_a_job_has_the_warning(tiny: Dataset, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    store = JobStore(home.store_url)
    try:
        spec = spec_of(tiny, "ppdsparse", HASTY["ppdsparse"]).as_dict()
        submission = JobSubmission({**spec, "name": "hasty", "dataset_id": "ds_1"}, name="hasty")
        job = store.jobs.submit(submission)[0]
        store.attempts.claim("test", lease_seconds=600)
        options = MonitorOptions(lease_seconds=600.0, heartbeat_seconds=0.05, report_seconds=0.02)
        run_attempt(store, home, job.id, 1, options=options)
        (warning,) = store.jobs.get(job.id).result["report"]["warnings"]
        assert warning["code"] == "NOT_CONVERGED"
    finally:
        store.close()


@pytest.mark.parametrize(
    "estimator",
    [
        PPDSparse(eps=1e-12, max_rounds=1),
        DSMLR(tolerance=1e-12, epochs=1),
        LeastSquares(tolerance=1e-12, max_rounds=1),
    ],
)
def test_estimators_warn_as_scikit_learn_does(estimator: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 6)), rng.integers(0, 3, 40)
    with pytest.warns(ConvergenceWarning, match="ended without its tolerance"):
        estimator.fit(X, y)
