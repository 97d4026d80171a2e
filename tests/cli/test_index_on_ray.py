"""`xcray data index`: the pool and its errors, the same bytes from Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.svm_problems import svm_dataset, svm_problem
from xcray.cli.main import main


def test_unknown_pools_and_unused_addresses_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = svm_dataset(svm_problem(3, n=500), tmp_path / "svm")
    for options, message in (
        (["--pool", "threads"], "serial or ray"),
        (["--ray-address", "127.0.0.1:1"], "--ray-address needs --pool ray"),
    ):
        assert main(["data", "index", str(dataset.path), *options]) != 0
        assert message in capsys.readouterr().err
    assert not (dataset.path / "metric-forest").exists()


@pytest.mark.drill
def test_ray_builds_the_same_pages(tmp_path: Path) -> None:
    dataset = svm_dataset(svm_problem(3, n=20_000), tmp_path / "svm")
    pages = []
    command = ["data", "index", str(dataset.path), "--memory-limit", "100GiB", "--json"]
    for options in ([], ["--pool", "ray", "--workers", "2"]):
        assert main([*command, *options]) == 0
        pages.append((dataset.path / "metric-forest" / "pages.bin").read_bytes())
    assert pages[0] == pages[1]
