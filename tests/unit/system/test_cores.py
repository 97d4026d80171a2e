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


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write files by their names below a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


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
    write_files(tmp_path, {"proc/self/cgroup": "0::/\n", "cg/cpu.max": output})
    assert available_cores(tmp_path / "proc", tmp_path / "cg") == expected
    assert available_cores(tmp_path / "none", tmp_path / "none") == HERE


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/system.slice/run.service\n",
            "cg/system.slice/run.service/cpu.max": "100000 100000\n",
            "cg/system.slice/cpu.max": "max 100000\n",
        },
        {"proc/self/cgroup": "0::/a/b\n", "cg/a/cpu.max": "50000 100000\n"},
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:memory:/x\n0::/\n",
            "cg/cpu/cpu.cfs_quota_us": "100000\n",
            "cg/cpu/cpu.cfs_period_us": "100000\n",
        },
        {
            "proc/self/cgroup": "4:cpuacct,cpu:/job\n",
            "cg/cpu/job/cpu.cfs_quota_us": "20000\n",
            "cg/cpu/job/cpu.cfs_period_us": "100000\n",
            "cg/cpu/cpu.cfs_quota_us": "-1\n",
            "cg/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["nested", "parent", "version 1", "version 1 nested"],
)
def test_every_control_group_limits_the_number_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    write_files(tmp_path, files)
    assert available_cores(tmp_path / "proc", tmp_path / "cg") == 1
    write_files(tmp_path, {name: "-1\n" for name in files if name.endswith("quota_us")})
    write_files(tmp_path, {name: "max 100000\n" for name in files if name.endswith("cpu.max")})
    assert available_cores(tmp_path / "proc", tmp_path / "cg") == 8


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
    assert available_cores(Path("/nowhere"), Path("/nowhere")) == HERE
