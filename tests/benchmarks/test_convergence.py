"""The convergence benchmark: its sample of labels, and figures that agree with the certificates."""

from __future__ import annotations

import numpy as np

from benchmarks.training import convergence
from tests.support.report_data import png_size
from xcray.data.dataset import Dataset
from xcray.metrics import frequency_groups


def test_the_sample_has_every_frequency(tiny: Dataset) -> None:
    labels = convergence.sampled(tiny, 20)
    assert labels.tolist() == sorted(set(labels.tolist())) == convergence.sampled(tiny, 20).tolist()
    assert (
        np.bincount(frequency_groups(tiny.label_counts)[labels], minlength=10).tolist() == [2] * 10
    )


def test_more_rounds_and_smaller_eps_improve_and_gaps_are_bounds(
    tiny: Dataset, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(convergence, "ROUNDS", (1, 2, 8))
    monkeypatch.setattr(convergence, "EPS", (0.3, 0.01))
    result = convergence.single_classes(tiny, convergence.sampled(tiny, 10), repeats=1)
    assert result["gap_is_a_bound"]
    assert result["gap_of_best"] < 1e-6
    for path in ("by_round", "by_eps"):
        first, last = result[path][0], result[path][-1]
        assert last["above_best"]["median"] < first["above_best"]["median"]
        assert last["gap"]["max"] < first["gap"]["max"]
        assert last["work"] > first["work"]
    assert all(row["gap"]["max"] <= row["at"] for row in result["by_eps"])
    models = convergence.whole_models(tiny)
    assert [row["labels_certified"] for row in models] == [tiny.n_labels] * 2
    assert models[-1]["P@1"] > 0.3
    whole = {
        "set": "tiny",
        "labels": tiny.n_labels,
        "rows": tiny.train.n_rows,
        **result,
        "models": models,
    }
    convergence.picture(whole, tmp_path / "convergence.png")
    assert min(png_size(tmp_path / "convergence.png")) >= 600
