"""Toy solvers of the documentation: names, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.source import ROOT
from tests.support.toy_solvers import TOYS
from xcray.errors import ParameterError
from xcray.solvers import parameter_table, register_solver

DOCS = ROOT / "docs" / "add_a_solver.md"


def test_a_name_is_given_once() -> None:
    register_solver("toy-centroid", TOYS["toy-centroid"])  # the same class again
    with pytest.raises(ParameterError, match="choose another name"):
        register_solver("toy-centroid", TOYS["toy-gradient"])
    with pytest.raises(ParameterError, match="choose another name"):
        register_solver("ppdsparse", TOYS["toy-centroid"])
    assert [row["name"] for row in parameter_table("toy-centroid")] == ["prune"]


def test_the_page_shows_the_files() -> None:
    page = DOCS.read_text()
    for name in ("centroid", "gradient"):
        path = Path("tests/support/toy_solvers") / f"{name}.py"
        shown = f"<!-- {path} -->\n```python\n{(ROOT / path).read_text()}```\n"
        assert shown in page, f"copy {path} into docs/add_a_solver.md, below its comment"
