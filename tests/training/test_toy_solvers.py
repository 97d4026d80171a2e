"""A toy solver of each family, through training, resume, report, model and prediction."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.source import ROOT
from tests.support.toy_solvers import TOYS
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError, Stopped
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.solvers import make_solver, parameter_table, register_solver
from xcray.training.report.render import summarize_model, to_markdown
from xcray.training.run import TrainResult, train
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag

DOCS = ROOT / "docs" / "add_a_solver.md"
WORKERS = 2
each_toy = pytest.mark.parametrize("toy", TOYS)


def spec_of(data: Dataset, toy: str, pool: str = "serial") -> TrainSpec:
    """Return a training of a toy. The number of workers is part of some solvers' sums."""
    return TrainSpec(str(data.path), solver=toy, pool=pool, workers=WORKERS)


@pytest.fixture(scope="module")
def trained(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    """Return one finished training per toy."""
    folder = tmp_path_factory.mktemp("toys")
    return {
        toy: train(spec_of(tiny, toy), run_dir=folder / f"{toy}.run", out=folder / toy)
        for toy in TOYS
    }


@each_toy
def test_report_model_and_prediction(
    tiny: Dataset, trained: dict[str, TrainResult], toy: str
) -> None:
    result, solver = trained[toy], make_solver(toy, {})
    report, model = result.report, Model.open(result.model_path)
    assert report["classes"] == tiny.n_labels
    assert "classes_certified" not in report
    assert "largest_gap" not in report
    assert model.link == solver.link
    assert model.classes is not None
    assert set(solver.records.columns) <= set(model.classes.column_names)
    assert f"solved by {toy}" in to_markdown(
        {**summarize_model(model), "pictures": {}, "left_out": {}}
    )
    json.dumps(report, allow_nan=False)
    assert result.measures["P@1"] > 0.3
    assert tiny.test is not None
    top = Predictor(model).predict(tiny.test.X, k=3)
    assert top.labels.shape == (tiny.test.n_rows, 3)


@each_toy
@pytest.mark.parametrize("pool", ["serial", "threads"])
def test_a_stopped_training_resumes_with_the_same_bits(
    tiny: Dataset, trained: dict[str, TrainResult], tmp_path: Path, toy: str, pool: str
) -> None:
    stop, values = StopFlag(), list[Any]()

    def progress(step: Any) -> None:
        values.append(step.phase)
        if values.count("TRAINING") == 2:
            stop.set()

    spec, folders = spec_of(tiny, toy, pool), {"run_dir": tmp_path / "run", "out": tmp_path / "m"}
    with pytest.raises(Stopped):
        train(spec, **folders, progress=progress, stop=stop)
    assert train(spec, **folders).sha256 == trained[toy].sha256


@pytest.mark.drill
@each_toy
def test_a_killed_training_resumes_with_the_same_bits(
    tiny: Dataset, trained: dict[str, TrainResult], tmp_path: Path, toy: str
) -> None:
    spec, folders = spec_of(tiny, toy, "threads"), (str(tmp_path / "run"), str(tmp_path / "m"))
    arguments = [json.dumps(spec.as_dict()), *folders]
    child = subprocess.run([sys.executable, "-c", CHILD, *arguments], cwd=ROOT, check=False)
    assert child.returncode == -signal.SIGKILL
    result = train(spec, run_dir=tmp_path / "run", out=tmp_path / "m")
    assert result.sha256 == trained[toy].sha256


CHILD = """
import json, os, signal, sys
from pathlib import Path
import tests.support.toy_solvers
from xcray.training.run import train
from xcray.training.spec import TrainSpec
seen = []
def progress(step):
    seen.append(step.phase)
    if seen.count("TRAINING") == 2:
        os.kill(os.getpid(), signal.SIGKILL)
spec = TrainSpec.from_dict(json.loads(sys.argv[1]))
train(spec, run_dir=Path(sys.argv[2]), out=Path(sys.argv[3]), progress=progress)
"""


@pytest.mark.ray
@pytest.mark.drill
def test_ray_gives_the_same_bits(
    ray: None, tiny: Dataset, trained: dict[str, TrainResult], tmp_path: Path
) -> None:
    for toy in TOYS:
        folders = {"run_dir": tmp_path / f"{toy}.run", "out": tmp_path / toy}
        assert train(spec_of(tiny, toy, "ray"), **folders).sha256 == trained[toy].sha256


def test_a_name_is_given_once() -> None:
    register_solver("toy-centroid", TOYS["toy-centroid"])  # the same class again
    with pytest.raises(ParameterError, match="choose another name"):
        register_solver("toy-centroid", TOYS["toy-gradient"])
    with pytest.raises(ParameterError, match="choose another name"):
        register_solver("ppdsparse", TOYS["toy-centroid"])
    assert [row["name"] for row in parameter_table("toy-centroid")] == ["prune"]


def test_the_page_shows_the_files() -> None:
    page = DOCS.read_text()
    for name in ("centroid", "perceptron", "rotating", "gradient"):
        path = Path("tests/support/toy_solvers") / f"{name}.py"
        shown = f"<!-- {path} -->\n```python\n{(ROOT / path).read_text()}```\n"
        assert shown in page, f"copy {path} into docs/add_a_solver.md, below its comment"
