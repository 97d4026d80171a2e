"""A short fuzzing run: some inputs of each target, and every input that failed before."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.robustness.fuzz.__main__ import main
from tests.robustness.fuzz.inputs import mutated
from tests.robustness.fuzz.targets import TARGETS, Differs, Target, compared

FINDINGS = sorted((Path(__file__).parent / "fuzz" / "found").glob("*.bin"))


@pytest.mark.parametrize("path", FINDINGS, ids=[path.stem for path in FINDINGS])
def test_inputs_that_failed_before(path: Path, tmp_path: Path) -> None:
    name = path.stem.rpartition("-")[0]
    assert TARGETS[name].run(path.read_bytes(), tmp_path)


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_seeds_and_mutations_of_them(target: Target, tmp_path: Path) -> None:
    outcomes = {target.run(data, tmp_path) for data in target.seeds}

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(mutated(target.seeds, target.words))
    def attempt(data: bytes) -> None:
        outcomes.add(target.run(data, tmp_path))

    attempt()
    assert len(outcomes) > 1


def test_a_run_in_a_child_process_has_limits_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The child imports all targets; the folder of temporary files is empty afterwards."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert main(["--inputs", "20", "--target", "svmlight", "--seed", "1"]) == 0
    assert "svmlight: 20 inputs" in capfd.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_difference_is_detected() -> None:
    with pytest.raises(Differs):
        compared(lambda: [1], lambda: [2], lambda a, b: a == b)
