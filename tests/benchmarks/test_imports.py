"""Every benchmark imports, and its quick run ends with one JSON object."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import LONGER, QUICK

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if path.name != "__init__.py"
)
SECONDS = (  # the others run as drills
    "cluster.growth",
    "least_squares.text",
    "training.certificates",
)
AS_DRILLS = [
    pytest.param(name, marks=pytest.mark.drill)
    for name in (*QUICK, "peers.accuracy")
    if name not in SECONDS
]


@pytest.mark.parametrize("module", MODULES)
def test_its_imports_work(module: str) -> None:
    importlib.import_module(module)


def quick(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> dict[str, Any]:
    """Run a benchmark with --quick in this process and return its JSON."""
    module = importlib.import_module(f"benchmarks.{name}")
    if not hasattr(module, "main"):
        module = importlib.import_module(f"benchmarks.{name}.__main__")
    monkeypatch.setattr(sys, "argv", ["benchmark", "--quick"])
    module.main()
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


@pytest.mark.parametrize("name", [*SECONDS, *AS_DRILLS])
def test_its_quick_run_works(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = quick(name, monkeypatch, capsys)
    assert figures["machine"]["cores"] >= 1
    if name == "training.certificates":
        assert all(each["within_gap"] == each["labels"] for each in figures["sets"])
    if name == "soak.corruption":
        assert figures["unseen"] == {}


def test_every_benchmark_with_a_frame_is_listed() -> None:
    framed = {
        module.removeprefix("benchmarks.").removesuffix(".__main__")
        for module in MODULES
        if "run_benchmark(" in source(module)
    }
    special = {"harness", "monitoring.dashboards"}  # the latter needs Prometheus
    assert framed - special == {*QUICK, *LONGER}


def source(module: str) -> str:
    """Return the text of a module."""
    return (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
