"""The frame of the benchmarks: turns, medians, options, the JSON line and its exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import dataset, images, in_turns, medians, run_benchmark


def test_methods_take_turns_and_figures_are_medians() -> None:
    calls: list[str] = []

    def noting(name: str, values: list[float]) -> Any:
        def method() -> dict[str, Any]:
            calls.append(name)
            return {"ms": values[calls.count(name) - 1], "hash": name}

        return method

    methods = {"a": noting("a", [1.0, 9.0, 2.0]), "b": noting("b", [5.0, 6.0, 4.0])}
    assert in_turns(methods, 3) == {"a": {"ms": 2.0, "hash": "a"}, "b": {"ms": 5.0, "hash": "b"}}
    assert calls == ["a", "b", "b", "a", "a", "b"]


def test_statuses_are_summed_and_missing_figures_skipped() -> None:
    turns = [{"open": {"p99": 3.0}, "statuses": {"200": 4}}, {"statuses": {"200": 5, "503": 1}}]
    assert medians(turns) == {"open": {"p99": 3.0}, "statuses": {"200": 9, "503": 1}}


@pytest.mark.parametrize(
    ("words", "rows"), [([], 50), (["--quick"], 5), (["--quick", "--rows", "7"], 7)]
)
def test_quick_replaces_defaults_and_the_last_line_is_json(
    words: list[str],
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(tmp_path / "out.json"), *words])

    def measure(options: Any, folder: Path) -> dict[str, Any]:
        assert folder.is_dir()
        return {"rows": options.rows}

    run_benchmark(measure, "Help.", quick={"rows": 5}, rows={"type": int, "default": 50})
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["rows"] == rows
    assert json.loads((tmp_path / "out.json").read_text()) == last


def test_wrong_figures_end_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench"])
    with pytest.raises(SystemExit, match="1"):
        run_benchmark(lambda *_: {"wrong": ["a reply mixed versions"]}, "Help.")


def test_images_become_rows_between_0_and_1(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    arrays = {"X_train": pixels, "X_test": pixels[:1]}
    labels = {"y_train": np.array([0, 2, 1, 0]), "y_test": np.array([2])}
    np.savez(tmp_path / "tiny.npz", **arrays, **labels)
    data = images("tiny", tmp_path / "tiny.npz", tmp_path / "set")
    assert data.n_labels == 3
    assert np.allclose(data.train.X.to_scipy().toarray(), pixels.reshape(4, 6) / 255.0)
    assert data["test"].Y.indices.tolist() == [2]


def test_a_fetched_set_is_opened(tmp_path: Path) -> None:
    made = dataset("synthetic", None, tmp_path)
    made.path.rename(tmp_path / "bibtex")
    assert dataset("bibtex", tmp_path, tmp_path / "new").content_hash == made.content_hash
