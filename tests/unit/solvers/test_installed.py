"""Solvers of other packages: entry points of the group `xcray.solvers`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_service import client_of, settings_for
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError
from xcray.model.model import Model
from xcray.service.app import create_app
from xcray.solvers import SOLVERS, find_solver, make_solver
from xcray.solvers.installed import installed_solvers

ENTRY_POINTS = """[xcray.solvers]
other-centroid = other_solvers:OtherSolver
no-module = other_solvers.missing:Solver
no-class = other_solvers:Missing
no-solver = other_solvers:json
ppdsparse = other_solvers:OtherSolver
"""
MODULE = """
import json
from dataclasses import dataclass
from tests.support.toy_solvers.centroid import CentroidSolver

@dataclass(frozen=True)
class OtherSolver(CentroidSolver):
    '''Solve it elsewhere.'''
"""
BROKEN = {
    "no-module": "No module named",
    "no-class": "no attribute 'Missing'",
    "no-solver": "is not a dataclass",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with one solver that works, three that do not, and one of a taken name."""
    folder = tmp_path / "site"
    (folder / "other_solvers-1.0.dist-info").mkdir(parents=True)
    (folder / "other_solvers.py").write_text(MODULE)
    metadata = folder / "other_solvers-1.0.dist-info"
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-solvers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(SOLVERS, "_classes", dict(vars(SOLVERS)["_classes"]))
    installed_solvers.cache_clear()
    yield
    installed_solvers.cache_clear()


@pytest.mark.usefixtures("package")
def test_a_solver_of_another_package_trains_and_is_listed(
    tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["solvers", "--json"]) == 0
    captured = capsys.readouterr()
    shown = {each["name"]: each for each in json.loads(captured.out)["solvers"]}
    assert shown["other-centroid"]["help"] == "Solve it elsewhere."
    assert shown["ppdsparse"]["help"] != "Solve it elsewhere."
    for name, reason in BROKEN.items():
        assert name not in shown
        assert f"solver {name} of the package other-solvers can't be loaded" in captured.err
        assert reason in captured.err
        assert main(["train", str(tiny.path), "--solver", name, "-o", str(tmp_path / name)]) == 2
        assert f"error SOLVER_BROKEN: solver {name} of the package" in capsys.readouterr().err
    words = ["train", str(tiny.path), "--solver", "other-centroid", "--pool", "serial"]
    assert main([*words, "-o", str(tmp_path / "model")]) == 0
    assert Model.open(tmp_path / "model").manifest["solver"] == "other-centroid"
    assert main(["train", str(tiny.path), "--no-such", "1"]) == 2  # a hint reads all solvers


@pytest.mark.usefixtures("package")
def test_a_service_shows_solvers_of_other_packages(tmp_path: Path) -> None:
    with client_of(create_app(settings_for(tmp_path / "home"))) as http:
        names = [each["name"] for each in http.get("/v1/solvers").json()["solvers"]]
        assert "other-centroid" in names
        assert not set(BROKEN) & set(names)
        assert http.get("/v1/solvers/no-class").json()["code"] == "SOLVER_BROKEN"


@pytest.mark.usefixtures("package")
def test_a_model_of_a_solver_that_cannot_be_loaded_has_no_class() -> None:
    assert find_solver("no-class") is None
    assert find_solver("unknown") is None
    with pytest.raises(ParameterError, match="no-class"):
        make_solver("no-class", {})
