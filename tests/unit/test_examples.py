"""Every script of `examples/` runs from a clone, prints its result and leaves no files behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
HANG_SECONDS = 600  # compiling all kernels on a busy machine takes minutes
MAX_LINES = 40


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_leaves_no_files(script: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "XCRAY_HOME": str(tmp_path / "home"),
    }
    env.pop("PYTHONUNBUFFERED", None)  # output into a pipe is buffered, as for most users
    process = subprocess.run(
        [sys.executable, str(script.relative_to(ROOT))],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert any(re.fullmatch(EXPECTED[script.name], line) for line in process.stdout.splitlines()), (
        process.stdout
    )
    assert list(temporary.iterdir()) == []


def test_every_example_has_an_expected_line() -> None:
    assert {path.name for path in EXAMPLES} == set(EXPECTED)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) <= MAX_LINES
