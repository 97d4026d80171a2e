"""Expected results of a case through the readers, as in the child process of the service."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.robustness.badinput.case import Bad, Good, laid_out, wrong
from xcray.data.build import build
from xcray.service.datasets.ingest import run_build


def refused(format: str, case: Bad, folder: Path) -> None:
    """Assert that a build fails with the case's error, a fix and no path, and leaves no files."""
    sources, _ = laid_out(case, format, folder)
    before = sorted(folder.iterdir())
    request = {
        "format": format,
        "name": "asked",
        "target": str(folder / "out"),
        "options": dict(case.options),
    }
    for name, value in case.options.items():
        if name in case.more or str(value) in case.more:
            request["options"][name] = str(folder / str(value))
    outcome = run_build(
        {**request, "sources": {part: str(path) for part, path in sources.items()}}, folder
    )
    assert "problem" in outcome, outcome
    problem = outcome["problem"]
    first = outcome["errors"][0] if outcome["errors"] else problem
    assert wrong(case, first, sources["train"].name) == []
    assert problem["code"] == case.code
    assert str(folder) not in json.dumps(outcome)
    assert sorted(folder.iterdir()) == before, "nothing is published or left behind"


def understood(format: str, case: Good, folder: Path) -> None:
    """Assert that the data set has the rows, labels and warnings of the case."""
    sources, options = laid_out(case, format, folder)
    result = build(format, sources, folder / "out", options)
    X, Y = result.train.X.to_scipy().toarray(), result.train.Y.to_scipy().toarray().astype(int)
    assert case.X is None or np.array_equal(X, np.array(case.X, np.float32))
    assert case.Y is None or Y.tolist() == case.Y
    assert case.labels is None or result.label_names.to_pylist() == case.labels
    warnings = result.manifest["source"]["parts"]["train"]["warnings"]
    assert case.warnings is None or warnings == case.warnings
