"""The number of cores that this process can use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xcray.service.settings import Settings
from xcray.system.cores import available_cores
from xcray.training.capacity.preflight import worker_count
from xcray.training.spec import TrainSpec

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.fixture(autouse=True)
def no_cpu_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_CPU_COUNT", raising=False)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("100001 100000\n", min(2, HERE)),
        ("max 100000\n", HERE),
        ("99900000 100000\n", HERE),
        ("", HERE),
        ("100000\n", HERE),
        ("100000 0\n", HERE),
    ],
)
def test_a_container_limits_the_number_of_cores(tmp_path: Path, output: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(output)
    assert available_cores(tmp_path / "cpu.max") == expected
    assert available_cores(tmp_path / "none") == HERE


def test_a_number_of_cores_in_the_environment_wins_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHON_CPU_COUNT", "7")
    assert available_cores() == 7
    assert Settings().prediction_threads == 7
    assert Settings(processes=3).prediction_threads == 2
    assert worker_count(TrainSpec(dataset="data", pool="threads")) == 7
    assert worker_count(TrainSpec(dataset="data", pool="threads", workers=2)) == 2


@pytest.mark.parametrize("output", ["", "default", "0", "-1", "2.5", "many"])
def test_nonsense_counts_as_nothing(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.setenv("PYTHON_CPU_COUNT", output)
    assert available_cores() >= 1
    assert available_cores(Path("/nowhere")) == HERE
