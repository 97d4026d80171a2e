"""Spectrum of a data set against the singular values of the whole matrix."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from xcray.arrays import csr_from, pattern
from xcray.cli.main import main
from xcray.data import spectrum as module
from xcray.data.spectrum import spectrum
from xcray.data.writer import DatasetWriter


@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
@pytest.mark.parametrize("exact", [True, False])
def test_values_are_the_singular_values(
    shape: tuple[int, int], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exact:
        monkeypatch.setattr(module, "EXACT", 8)
    rng = np.random.default_rng(0)
    X = rng.normal(size=shape) @ np.diag(0.7 ** np.arange(shape[1]))
    X = X.astype(np.float32)
    found = spectrum(csr_from(X), count=12)
    expected = np.linalg.svd(X.astype(np.float64), compute_uv=False)
    assert found.values == pytest.approx(expected[:12], rel=1e-3)
    assert found.total == pytest.approx(np.square(expected).sum())
    assert found.condition == pytest.approx(expected[1] / expected[11], rel=1e-3)


def test_values_of_0_are_left_out_and_no_rows_have_none() -> None:
    X = np.outer(np.arange(1, 6), np.arange(3)).astype(np.float32)
    assert len(spectrum(csr_from(X)).values) == 1
    none = spectrum(csr_from(np.zeros((3, 2), np.float32))).summary()
    assert none["condition"] == 1.0
    assert module.show_eigenvalues(none["eigenvalues"], (1, 10, none["values"])) == ""


def test_the_command_gives_the_advice_for_both_kinds_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, words = np.random.default_rng(0), {}
    X = rng.normal(size=(200, 20))
    for name, scales in (("text", np.ones(20)), ("images", 0.4 ** np.arange(20))):
        with DatasetWriter(tmp_path / name, name=name, n_labels=2) as writer:
            rows = csr_from((X * scales).astype(np.float32))
            writer.add("train", rows, pattern(np.arange(201), np.arange(200) % 2, 2))
            writer.finish(source={"format": "made"})
        assert main(["data", "spectrum", str(tmp_path / name), "--json"]) == 0
        words[name] = json.loads(capsys.readouterr().out)
    assert words["text"]["advice"].startswith("well conditioned")
    assert words["images"]["advice"].startswith("ill-conditioned")
    assert words["images"]["condition"] > 1000.0 > 2.0 > words["text"]["condition"]
    assert main(["data", "spectrum", str(tmp_path / "text")]) == 0
    assert "2nd to 20th singular value" in capsys.readouterr().out.replace("\n", " ")
