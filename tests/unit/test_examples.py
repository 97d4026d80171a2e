"""Every script of `examples/` runs from a clone, prints its result and leaves no files behind."""

from __future__ import annotations

import re
import runpy
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# A pattern of one line that each script prints.
EXPECTED = {
    "estimator.py": r"best parameters: \{'ppdsparse__lam': 0\.0?1\}",
    "filters_and_deadlines.py": r"returned labels: \[3, 5, 8\]",
    "service_client.py": r"job: SUCCEEDED",
    "softmax_probabilities.py": r"all 20 labels of the row: 1\.000",
    "text_classification.py": r"a ripe apple and a plum: fruit",
    "train_and_predict.py": r"P@1 on held-out rows: 0\.9\d",
}
MAX_LINES = 40


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_leaves_no_files(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It runs in this process, which has loaded most of what it imports."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    runpy.run_path(str(script), run_name="__main__")
    output = capsys.readouterr().out
    assert any(re.fullmatch(EXPECTED[script.name], line) for line in output.splitlines()), output
    assert list(tmp_path.iterdir()) == []
    assert len(script.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_every_example_has_an_expected_line() -> None:
    assert {path.name for path in EXAMPLES} == set(EXPECTED)
