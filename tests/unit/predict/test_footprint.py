"""Footprint of predictions: core libraries only, no copies on opening, no leaks on closing."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.flat_models import write_fields
from xcray.arrays import csr_from, pattern_from
from xcray.data.text.pipeline import TextPipeline
from xcray.errors import EXTRAS
from xcray.model.model import Model
from xcray.predict import Predictor

ROOT = Path(__file__).parents[3]
TEXTS = ["read rows of a csv file", "sleep for some seconds", "café rows of naïve files"]
# The libraries of a core install: [project.dependencies] and their own dependencies.
CORE = {
    "numba",
    "llvmlite",
    "numpy",
    "pyarrow",
    "rich",
    "threadpoolctl",
    "typer",
    "click",
    "pydantic",
    "pydantic_core",
    "pygments",
    "markdown_it",
    "mdurl",
}
CORE |= {
    "shellingham",
    "typing_extensions",
    "typing_inspection",
    "annotated_types",
    "annotated_doc",
}
BARE = f"""
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from sysconfig import get_path

HERE = {str(ROOT)!r}
CORE = {sorted(CORE)!r}
INSTALLED = {{path.name.split(".")[0] for kind in ("purelib", "platlib") for path in Path(get_path(kind)).iterdir()}}
asked = set()

class Bare(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in INSTALLED and top not in CORE and top != "xcray":
            asked.add(top)
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Bare())
sys.path.insert(0, HERE)
"""


def bare(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that finds only the core libraries and xcray."""
    command = [sys.executable, "-c", BARE + code, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, cwd=ROOT.parent
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model that reads text."""
    text = TextPipeline.fit(TEXTS)
    W = csr_from(np.random.default_rng(0).normal(size=(3, text.n_features)).astype(np.float32))
    names = {"label_names": ["csv", "time", "café"], "feature_names": text.terms}
    write_fields(
        tmp_path / "model",
        W=W,
        b=[0.1, 0, 0],
        solver="made",
        params={},
        dataset_hash="0",
        text=text,
        **names,
    )
    return tmp_path / "model"


def test_a_core_install_predicts(model: Path) -> None:
    """Texts, sparse and dense rows, names, explanations: same results as in this process."""
    code = """
import json
import numpy as np
import xcray
model = xcray.Model.open(sys.argv[1])
predictor = xcray.Predictor(model)
texts = json.loads(sys.argv[2])
X = model.text.transform(texts)
dense = np.zeros(X.shape, np.float32)
dense[np.repeat(np.arange(X.n_rows), np.diff(X.indptr)), X.indices] = X.data
answers = [predictor.scored_labels(predictor.predict(rows, 2)) for rows in (texts, X, dense)]
reason = predictor.explain(texts[0], "csv").as_dict()
print(json.dumps([answers, reason, sorted(asked), sorted(m for m in sys.modules if m.startswith("xcray."))]))
"""
    process = bare(code, str(model), json.dumps(TEXTS))
    assert process.returncode == 0, process.stderr
    answers, reason, request, loaded = json.loads(process.stdout)
    predictor = Predictor(Model.open(model))
    expected = json.loads(json.dumps(predictor.scored_labels(predictor.predict(TEXTS, 2))))
    assert answers == [expected] * 3
    assert reason == json.loads(json.dumps(predictor.explain(TEXTS[0], "csv").as_dict()))
    assert set(request) & set(EXTRAS) <= {"scipy"}  # numba looks for it but does not need it
    rooms = {name.split(".")[1] for name in loaded}
    assert not rooms & {"solvers", "train", "execution", "estimators", "jobs", "service", "client"}


def test_a_core_install_trains_and_answers_on_the_command_line(tmp_path: Path) -> None:
    lines = [
        json.dumps({"text": f"{text} {i}", "labels": [text.split()[0]]})
        for i in range(8)
        for text in TEXTS
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    code = """
from xcray.cli.main import main
data, out = sys.argv[1] + "/data", sys.argv[1] + "/model"
codes = [main(["data", "build", "jsonl", sys.argv[1] + "/train.jsonl", data])]
codes.append(main(["train", data, "--out", out, "--pool", "threads"]))
codes.append(main(["predict", out, "read rows", "-k", "1", "--json"]))
print(codes)
"""
    process = bare(code, str(tmp_path))
    assert process.stdout.splitlines()[-1:] == ["[0, 0, 0]"], process.stdout + process.stderr
    assert '"read"' in process.stdout


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import xcray; xcray.PPDSparse", "sklearn"),
        ("import xcray; xcray.Client", "client"),
        ("from xcray.arrays import csr_from; csr_from([[1.0]]).to_scipy()", "sklearn"),
        ("from xcray.cli.main import main; sys.exit(main(['serve', '--port', '0']))", "serve"),
        ("from xcray.cli.main import main; sys.exit(main(['jobs', 'list']))", "client"),
    ],
)
def test_a_missing_extra_is_named(code: str, extra: str) -> None:
    process = bare(code)
    assert process.returncode == 1
    assert f"pip install 'xcray[{extra}]'" in process.stderr


def test_every_extra_has_its_modules() -> None:
    """The extras in errors.py and in pyproject.toml match."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = {
        "sqlalchemy": "SQLAlchemy",
        "sklearn": "scikit-learn",
        "Stemmer": "PyStemmer",
        "prometheus_client": "prometheus-client",
    }
    for module, extra in EXTRAS.items():
        expected = brought.get(module, module.replace("_", "-"))
        assert expected in {
            re.split(r"[\[>=<]", line)[0] for line in project["optional-dependencies"][extra]
        }
    names = {re.split(r"[\[>=<]", line)[0].replace("-", "_") for line in project["dependencies"]}
    assert names <= CORE


def test_opening_copies_nothing(model: Path) -> None:
    Model.open(model)
    before = pa.total_allocated_bytes()
    opened = Model.open(model, verify=False)
    assert pa.total_allocated_bytes() == before
    for array in (*opened.W[:3], opened.b):
        assert not array.flags.owndata
        assert not array.flags.writeable


def open_files() -> dict[str, int]:
    """Return how often each file of this process is open or mapped, if the system reports it."""
    results: dict[str, int] = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:  # the handle of the listing itself
            target = "gone"
        results[target] = results.get(target, 0) + 1
    for line in Path("/proc/self/maps").read_text().splitlines():
        target = line.split(maxsplit=5)[-1]
        results[target] = results.get(target, 0) + 1
    return results


@pytest.mark.parametrize("verify", [True, False])
def test_a_released_model_leaves_no_file_open_or_mapped(model: Path, verify: bool) -> None:
    """After several openings, no more files are open or mapped, and Arrow holds no more memory."""

    def use() -> Any:
        predictor = Predictor(Model.open(model, verify=verify))
        return predictor.scored_labels(predictor.predict(TEXTS, 2))

    def resources() -> tuple[dict[str, int], int]:
        gc.collect()
        mine = {name: n for name, n in open_files().items() if str(model.parent) in name}
        return mine, pa.total_allocated_bytes()

    first = use()
    before = resources()
    assert before[0] == {}
    selection = Predictor(Model.open(model, verify=verify))
    assert resources()[0]  # an open model is visible
    del selection
    for _ in range(4):
        assert use() == first
    assert resources() == before


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.bool_, list])
def test_dense_rows_become_sparse_as_scipy_makes_them(kind: Any) -> None:
    import scipy.sparse as sp

    dense = np.random.default_rng(3).integers(0, 3, (20, 7)) * 1.5
    dense[[0, 5, 19]] = 0
    for matrix in (dense, dense[:0], dense[:, :0], dense[3:4]):
        inputs = (
            matrix.tolist()
            if kind is list and matrix.size
            else matrix.astype(np.float64 if kind is list else kind)
        )
        theirs = sp.csr_matrix(
            matrix.astype(np.float64 if kind is list else kind), dtype=np.float32
        )
        for result in (csr_from(inputs), csr_from(theirs)):
            assert result.shape == theirs.shape
            for one, other in zip(
                result[:3], (theirs.indptr, theirs.indices, theirs.data), strict=True
            ):
                np.testing.assert_array_equal(one, other)
        ones = pattern_from(inputs)
        np.testing.assert_array_equal(ones.indptr, theirs.indptr)
        np.testing.assert_array_equal(ones.indices, theirs.indices)
    stored_zero = sp.csr_matrix((np.array([0.0, 2.0]), [1, 0], [0, 1, 2]), shape=(2, 2))
    assert pattern_from(stored_zero).indptr.tolist() == [0, 0, 1]
    assert csr_from(stored_zero).nnz == 2
