"""The notebooks run from top to bottom and show the expected results."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs.hooks import _markdown
from docs.notebooks import NOTEBOOKS, execute, tidy
from docs.reference import PYTHON

MAX_BYTES = 200_000
# absolute paths and colours of a terminal
MACHINE = re.compile(r"(?<![\w.:/])/(?:tmp|root|home|work|var|opt|usr)/|site-packages|\x1b\[")


@pytest.fixture(scope="module")
def executed_notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the quickstart after a run in a temporary folder."""
    return run("quickstart.ipynb", tmp_path_factory.mktemp("notebook"))


def run(file: str, place: Path) -> Any:
    """Return a notebook after a run in a folder; it removes its temporary files."""
    notebook = execute(file, place)
    assert list((place / "tmpdir").glob("xcray-quickstart-*")) == []
    return notebook


def outputs(notebook: Any, kind: str) -> list[str]:
    """Return the outputs of the cells of one MIME type; printed text counts as text/plain."""
    results = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and kind == "text/plain":
                results.append(output.text)
            results += [output.data[kind]] if kind in output.get("data", {}) else []
    return results


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_is_committed_executed(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    assert counts == list(range(1, len(code) + 1)), f"run python -m docs.notebooks {path.stem}"
    assert all(cell.metadata == {} for cell in code)
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds <= {"stream", "display_data", "execute_result"}  # no error
    shown = "".join([*outputs(notebook, "text/plain"), *outputs(notebook, "text/markdown")])
    assert shown.strip()
    assert re.findall(MACHINE, shown) == []
    assert path.stat().st_size <= MAX_BYTES


def test_folders_of_a_run_and_metadata_are_removed(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("1", metadata={"execution": {"iopub.status.idle": "now"}})
    folder = tmp_path / "tmpdir" / "xcray-1_a"
    text = f"{folder}/model and {tmp_path}/b"
    cell.outputs = [
        nbformat.v4.new_output("stream", text=text),
        nbformat.v4.new_output("display_data", {"text/plain": text}),
    ]
    notebook = tidy(nbformat.v4.new_notebook(cells=[cell], metadata={"a": 1}), tmp_path)
    assert outputs(notebook, "text/plain") == [".../model and .../b"] * 2
    assert notebook.cells[0].metadata == {}
    assert notebook.metadata.keys() == {"kernelspec", "language_info"}


def test_the_site_shows_outputs() -> None:
    shown = _markdown(NOTEBOOKS / "quickstart.ipynb")
    assert re.search(r"```text\n[^`]*'P@1': \d", shown)
    assert "data:image/png;base64,iVBOR" in shown


@pytest.mark.drill
def test_it_measures(executed_notebook: Any) -> None:
    shown = "\n".join(outputs(executed_notebook, "text/plain"))
    measures = {name: float(value) for name, value in re.findall(r"'(P@\d)': (\d+\.\d)", shown)}
    assert set(measures) == {"P@1", "P@3", "P@5"}
    assert 60 < measures["P@1"] <= 100
    assert measures["P@1"] > measures["P@3"] > measures["P@5"]


@pytest.mark.drill
def test_it_predicts_and_explains_in_words(executed_notebook: Any) -> None:
    shown = "\n".join(outputs(executed_notebook, "text/plain"))
    assert re.search(r"read rows of a csv file into dictionaries\s+csv", shown)
    assert re.search(r"\+\d\.\d{3}  csv\n", shown)
    assert "score of 'csv', rank 1" in shown


def test_notebooks_and_scripts_use_documented_modules_only() -> None:
    documented = {"xcray", *(module for modules in PYTHON.values() for module in modules)}
    sources = {path.name: path.read_text() for path in NOTEBOOKS.parent.glob("examples/*.py")}
    for path in NOTEBOOKS.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        sources[path.name] = "\n".join(c.source for c in cells if c.cell_type == "code")
    used = re.compile(r"^ *(?:from|import) (xcray[\w.]*)", re.MULTILINE)
    private = {
        (name, module)
        for name, source in sources.items()
        for module in used.findall(source)
        if module not in documented
    }
    assert private == set()


@pytest.mark.drill
def test_it_draws(executed_notebook: Any) -> None:
    pictures = outputs(executed_notebook, "image/png")
    assert len(pictures) == 1
    assert base64.b64decode(pictures[0]).startswith(b"\x89PNG")


@pytest.mark.drill
def test_least_squares_repeats_the_papers_table_and_figure(tmp_path: Path) -> None:
    notebook = run("least_squares.ipynb", tmp_path)
    shown = "".join(outputs(notebook, "text/plain"))
    errors = {
        name.strip(): float(value)
        for name, value in re.findall(r"([a-zA-Z: ]+?) +(\d+\.\d+) %", shown)
    }
    assert errors["pixels: calibrated"] < errors["pixels: least squares"]
    assert errors["random features: logistic"] < errors["pixels: logistic regression"]
    assert re.search(r"^held +the error falls from stage to stage: logistic$", shown, re.MULTILINE)
    assert len(outputs(notebook, "image/png")) == 1


def verdicts(notebook: Any) -> dict[str, str]:
    """Return what a notebook prints about each claim: held, or did not hold."""
    shown = "\n".join(outputs(notebook, "text/plain"))
    found = re.findall(r"^(did not hold|held) +(.+)$", shown, re.MULTILINE)
    return {claim: verdict for verdict, claim in found}


# Claims that do not depend on the speed of the machine.
PAPERS = {
    "ppdsparse": {
        "P@k is within 1 point of DiSMEC": "held",
        "P@1 is at least that of PD-Sparse": "held",
        "the model is smaller than that of DiSMEC": "held",
        "missing labels do less harm than with PD-Sparse": "held",
        "two workers give the same model": "held",
    },
    "ds_mlr": {
        "L-BFGS and DS-MLR reach the same objective": "held",
        "the paper's steps alone reach it": "did not hold",
        "five epochs are within 2 points of the end": "held",
        "two workers give the same model": "held",
    },
}


@pytest.mark.drill
@pytest.mark.parametrize("paper", PAPERS)
def test_a_notebook_repeats_a_papers_claims(paper: str, tmp_path: Path) -> None:
    notebook = run(f"{paper}.ipynb", tmp_path)
    found = verdicts(notebook)
    assert {claim: found[claim] for claim in PAPERS[paper]} == PAPERS[paper]
    assert len(outputs(notebook, "image/png")) == 1
    assert list((tmp_path / "tmpdir").iterdir()) == []


@pytest.mark.drill
@pytest.mark.parametrize(
    ("name", "pattern", "pictures"),
    [
        ("tuning", r"^auto +P@1 9\d\.\d %", 1),
        ("serving", r"^2 SUCCEEDED", 0),
        ("training_report", r"'relative_gap': 0.00", 5),
    ],
)
def test_a_notebook_runs(name: str, pattern: str, pictures: int, tmp_path: Path) -> None:
    notebook = run(f"{name}.ipynb", tmp_path)
    shown = "".join([*outputs(notebook, "text/plain"), *outputs(notebook, "text/markdown")])
    assert re.search(pattern, shown, re.MULTILINE)
    drawn = [*outputs(notebook, "image/png"), *outputs(notebook, "image/svg+xml")]
    assert len(drawn) == pictures
    assert list((tmp_path / "tmpdir").iterdir()) == []


@pytest.mark.drill
def test_memoir_repeats_the_papers_table(tmp_path: Path) -> None:
    notebook = run("memoir.ipynb", tmp_path)
    claims = verdicts(notebook)
    assert len(claims) == 7
    # those that do not depend on the speed of the machine
    assert claims["MEMOIR with exact search is within 2 points of Crammer-Singer"] == "held"
    assert claims["searching the rival is better than drawing one"] == "held"
    assert claims["the small-world graph costs at most a point of accuracy"] == "held"
    assert claims["the settings of Table 4 are as good"] == "did not hold"
    assert len(outputs(notebook, "image/png")) == 1


@pytest.mark.drill
def test_indexed_bcd_repeats_the_papers_figures(tmp_path: Path) -> None:
    notebook = run("indexed_bcd.ipynb", tmp_path)
    claims = verdicts(notebook)
    assert len(claims) == 10
    # those that do not depend on the speed of the machine
    for claim in (
        "s = 1 keeps at most 60 % of the support vectors",
        "s = 1 is within 0.2 points of no truncation",
        "the index ends within 0.2 points of the full dual",
        "a tenth of the memory gives the same weights",
        "the index reads at most a tenth more than random pages",
        "the squared loss ends within 0.2 points of the full dual",
    ):
        assert claims[claim] == "held"
    assert len(outputs(notebook, "image/png")) == 5
    assert list((tmp_path / "tmpdir").iterdir()) == []
