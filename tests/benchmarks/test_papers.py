"""The page of the papers: made from committed results, with rows that can be run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.papers import __main__ as command
from benchmarks.papers import page as pages
from benchmarks.papers.page import (
    COLUMNS,
    HELD,
    NOT_HELD,
    NOT_REPEATED,
    PAGE,
    PAPERS,
    PICTURES,
    draw_figures,
    page,
)
from benchmarks.papers.references import CASES, SETS, Case, excess, load
from benchmarks.papers.rows import Bench, Figure, Outcome, Paper, Row
from xcray.data.dataset import Dataset
from xcray.solvers import SOLVERS

VERDICTS = {HELD, NOT_HELD, NOT_REPEATED}


def test_the_page_is_what_the_results_give(tmp_path: Path) -> None:
    assert PAGE.read_text() == page()
    draw_figures(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (PICTURES / path.name).read_text()
        assert f"](pictures/{path.name})" in page()


def test_every_row_has_a_command_and_every_result_a_row() -> None:
    names = [row.name for paper in PAPERS for row in paper.rows]
    assert len(set(names)) == len(names)
    for paper in PAPERS:
        document = pages.results(paper)
        assert document["measured"].keys() <= {row.name for row in paper.rows}
        rows = pages.table(paper)
        assert len(rows) == len(paper.rows) + len(document["noted"])
        assert {len(row) for row in rows} == {len(COLUMNS)}
        assert all(all(row) for row in rows)
        assert {row[-1] for row in rows} <= VERDICTS
        for each in document["noted"]:
            assert re.match(r"(python -m benchmarks\.|xcray |notebooks/)", each["command"]), each
        for file, _ in paper.pictures:
            assert (PAGE.parent / "pictures" / file).is_file()


def test_counts_are_those_of_the_tables() -> None:
    verdicts = re.findall(rf"\| ({'|'.join(sorted(VERDICTS))}) \|$", page(), re.MULTILINE)
    total = re.search(r"^\| all \| (.+) \|$", page(), re.MULTILINE)
    assert total is not None
    counted = {each: verdicts.count(each) for each in (HELD, NOT_HELD, NOT_REPEATED)}
    assert total[1] == ", ".join(f"{number} {each}" for each, number in counted.items())


@pytest.mark.drill
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.solver}-{case.percent}")
def test_the_objective_is_that_of_another_program(name: str, case: Case, tmp_path: Path) -> None:
    assert -0.001 <= excess(case, load(name), tmp_path) <= case.percent


def test_every_solver_with_an_objective_has_a_reference() -> None:
    own = {name for name, each in SOLVERS.items() if each.__module__.startswith("xcray.")}
    presets = {name for name in own if name.startswith(("memoir-", "ppdsparse-"))}
    chains = {"stagewise", "calibrated-least-squares"}
    assert own - {case.solver for case in CASES} - presets - chains == {"pdsparse"}


@pytest.fixture
def small(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paper:
    """Return a paper with a row that runs, and one whose data are missing."""

    def run(bench: Bench) -> Outcome:
        trained = bench.train(tiny.path.name, "ppdsparse", {"eps": 0.1})
        assert bench.train(tiny.path.name, "ppdsparse", {"eps": 0.1}) is trained
        figure = Figure("Figure 9", ("s", "%"), {"a": [(1.0, 2.0), (10.0, 3.0)]}, (True, False))
        return Outcome(f"P@1 {trained.measures['P@1']:.0f}", trained.weights > 0, figure)

    rows = (
        Row("a", "claim", "1 | 2", "yes", (), run),
        Row("b", "claim", "3", "yes", ("eurlex",), run),
    )
    paper = Paper("small", "Small", "Nobody", rows, (("all", "it is small"),))
    for module in (pages, command):
        monkeypatch.setattr(module, "PAPERS", (paper,))
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    return paper


def test_rows_are_measured_and_saved(small: Paper, tiny: Dataset, tmp_path: Path) -> None:
    command.measure(tiny.path.parent, [], tmp_path / "work")
    measured = json.loads((tmp_path / "small.json").read_text())["measured"]
    assert measured.keys() == {"a"}
    assert measured["a"]["verdict"] == HELD
    assert re.fullmatch(r"P@1 \d+", measured["a"]["ours"])
    shown = page()
    assert r"| claim | 1 \| 2 |" in shown
    assert "| claim | 3 | needs eurlex | `b` | yes | not repeated here |" in shown
    draw_figures(tmp_path)
    assert "![Figure 9](pictures/a.svg)" in shown
    assert "Figure 9" in (tmp_path / "a.svg").read_text()
    assert "| all | 1 held, 0 did not hold, 1 not repeated here |" in shown


def test_names_of_rows_are_checked(small: Paper, tmp_path: Path) -> None:
    assert [row.name for _, row in command.chosen_rows(["b"], tmp_path)] == ["b"]
    assert len(command.chosen_rows(["small"], tmp_path)) == 2
    with pytest.raises(SystemExit, match="there is no row 'c'; rows: a, b, small"):
        command.chosen_rows(["c"], tmp_path)
