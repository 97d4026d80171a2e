"""The wheel: built from the source distribution, installed alone, and used as README says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.printed import ROOT

pytestmark = pytest.mark.drill

HIDDEN = ("PYTHONPATH", "NUMBA_CACHE_DIR")
# Bytecode is written when a module is first imported: most modules never are.
INSTALL = ("install", "-q", "--no-compile")
USER = """
import numpy as np
import scipy.sparse as sp
import xcray
X = sp.random(300, 40, 0.2, format="csr", dtype=np.float32, random_state=0)
Y = sp.csr_matrix((X[:, :5].toarray() > 0).astype(np.float32))
X_new, X_test, Y_test = X, X, Y
{lines}
assert "site-packages" in xcray.__file__, xcray.__file__
print("version", xcray.__version__)
"""


def run(*command: object, cwd: Path) -> str:
    """Run a command without the source tree in its path; return what it printed."""
    environment = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    ran = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,  # only detects a hang
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the source distribution and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def environment(distributions: Path) -> Path:
    """Return the programs of a virtual environment in which the wheel is installed.

    Kernels of the same sources that this machine has compiled are used again.
    """
    (wheel,) = distributions.glob("*.whl")
    venv.create(distributions / "env", with_pip=True)
    programs = distributions / "env" / "bin"
    run(programs / "python", "-m", "pip", *INSTALL, f"{wheel}[sklearn]", cwd=distributions)
    (package,) = distributions.glob("env/lib/*/site-packages/xcray")
    for kernel in (ROOT / "xcray" / "kernels").rglob("__pycache__/*.nb[ci]"):
        place = package / kernel.relative_to(ROOT / "xcray")
        place.parent.mkdir(exist_ok=True)
        shutil.copy(kernel, place)
    return programs


def test_the_distributions_have_the_program_and_nothing_else(distributions: Path) -> None:
    run(
        sys.executable,
        "-m",
        "twine",
        "check",
        "--strict",
        *distributions.glob("xcray-*"),
        cwd=distributions,
    )
    (wheel,) = distributions.glob("*.whl")
    (source,) = distributions.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"xcray"}
    assert "xcray/service/static/console.html" in names
    assert "xcray/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]
    with tarfile.open(source) as tar:
        inside = {name.split("/")[1] for name in tar.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "pyproject.toml", "xcray"} <= inside
    assert inside.isdisjoint({"tests", "benchmarks", "notebooks", "build"})


def test_the_wheel_works_without_the_source_tree(
    distributions: Path, environment: Path, tmp_path: Path
) -> None:
    lines = re.search(
        r"```python\n(from xcray import PPDSparse.+?)```", (ROOT / "README.md").read_text(), re.S
    )
    assert lines
    version = run(environment / "python", "-c", USER.format(lines=lines[1]), cwd=tmp_path).split()[
        -1
    ]
    xcray = environment / "xcray"
    assert version in run(xcray, "--version", cwd=tmp_path)
    assert len([*distributions.glob(f"xcray-{version}-*.whl")]) == 1
    run(xcray, "data", "build", "synthetic", "data", cwd=tmp_path)
    run(xcray, "train", "data", "--out", "model", "--pool", "serial", cwd=tmp_path)
    assert "P" in run(xcray, "evaluate", "model", "data", cwd=tmp_path)


MLFLOW = """
import sys
import mlflow
import pandas
from xcray.predict.mlflow_model import log_model, save_model

folder, model = sys.argv[1:]
mlflow.set_tracking_uri(f"sqlite:///{folder}/runs.db")
with mlflow.start_run():
    logged = log_model(model, "subjects")
save_model(model, f"{folder}/saved")
frame = pandas.DataFrame({"text": ["keys", "rows and columns of an object"]})
for place in (logged.model_uri, f"{folder}/saved"):
    answers = mlflow.pyfunc.load_model(place).predict(frame, params={"top_k": 1})
    assert [each["label"] for each in answers] == [["json"], ["csv"]], answers
    assert answers[1]["probability"][0] > 0.9, answers
print("loaded", mlflow.__version__)
"""


def test_mlflow_logs_loads_and_serves_a_model(environment: Path, tmp_path: Path) -> None:
    python = environment / "python"
    run(python, "-m", "pip", *INSTALL, "mlflow>=3,<4", cwd=tmp_path)
    model = ROOT / "tests" / "data" / "model-0.1.0"
    assert "loaded" in run(python, "-c", MLFLOW, tmp_path, model, cwd=tmp_path)
    assert not list((tmp_path / "saved").rglob("*.pkl"))
    assert "xcray[text]==" in (tmp_path / "saved/requirements.txt").read_text()  # stems
    request = '{"dataframe_split": {"columns": ["text"], "data": [["keys"]]}}'
    (tmp_path / "request.json").write_text(request)
    served = [environment / "mlflow", "models", "predict", "--env-manager", "local"]
    places = ["-m", tmp_path / "saved", "-i", tmp_path / "request.json", "-t", "json"]
    assert '"json"' in run(*served, *places, cwd=tmp_path)
