"""Toy solvers of the documentation: names, and the page that shows them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from docs import hooks
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
    place = SimpleNamespace(file=SimpleNamespace(src_uri=DOCS.name), meta={})
    page = hooks.on_page_markdown(DOCS.read_text(), place)
    for name in ("centroid", "gradient"):
        assert (ROOT / f"tests/support/toy_solvers/{name}.py").read_text() in page, name
