"""The comparison with other libraries: samples, files, restricted results and a tuned C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.peers.accuracy import CS, REFERENCE, peer_rows, prepare, with_measures
from benchmarks.peers.data import measures_sample, sample
from benchmarks.peers.worker import best
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.synthetic import SyntheticParams


def small(folder: Path) -> Dataset:
    params = SyntheticParams(rows=400, features=60, labels=24, nnz_per_row=8)
    return build("synthetic", {}, folder / "set", BuildOptions(test_fraction=0.3, synthetic=params))


def test_a_sample_has_one_label_per_frequency_stratum() -> None:
    counts = np.concatenate(
        [np.zeros(7, np.int64), np.random.default_rng(3).permutation(np.arange(1, 101))]
    )
    chosen = sample(counts, 20)
    assert len(chosen) == 20
    assert (np.diff(chosen) > 0).all()
    assert sorted((counts[chosen] - 1) // 5) == list(range(20))
    assert (sample(counts, 20) == chosen).all()
    assert sample(counts, 500).tolist() == list(range(7, 107))


def test_restricted_measures_count_rows_of_the_sample_only(tmp_path: Path) -> None:
    data = small(tmp_path)
    columns = sample(data.label_counts, 6)
    truth = data["test"].Y.to_scipy().toarray()[:, columns]
    top = best(np.random.default_rng(1).normal(size=truth.shape), 5)
    rows = truth.any(axis=1)
    hits = [
        np.mean([[truth[i, label] for label in top[i, :k]] for i in np.flatnonzero(rows)])
        for k in (1, 3, 5)
    ]
    result = measures_sample(top, data, columns)
    assert result["rows"] == rows.sum()
    assert [result[f"P@{k}"] for k in (1, 3, 5)] == [round(100 * float(hit), 2) for hit in hits]


def test_the_c_of_a_peer_is_tuned_on_held_out_training_rows(tmp_path: Path) -> None:
    those = prepare(small(tmp_path), tmp_path / "tasks")
    learn, held = (sp.load_npz(those.learn / f"{part}_x.npz") for part in ("train", "test"))
    assert learn.shape[0] + held.shape[0] == those.data.train.n_rows
    assert held.shape[0] == those.held_Y.n_rows

    def train(task: dict[str, Any], run: str) -> dict[str, Any]:
        rows = held.shape[0] if "learn" in run else those.data["test"].n_rows
        label = 0 if task["C"] == 3.0 else -1  # only C = 3 answers anything
        return {"top": np.full((rows, 5), label).tolist(), "train_cpu_s": 2.0}

    nothing = {"program": REFERENCE, "top": np.full((those.data["test"].n_rows, 5), -1)}
    rows = [nothing, *peer_rows(those, "pecos_tree", False, train)]
    _, default, tuned = with_measures(rows, those.data)
    assert (default["C"], tuned["C"]) == (1.0, 3.0)
    assert default["P@1"] == 0.0 < tuned["P@1"]
    assert tuned["differences"]["P@1"]["difference"] == tuned["P@1"] / 100
    assert tuned["differences"]["P@1"]["standard_error"] > 0.0
    assert [part["group"] for part in tuned["by_frequency"]] == ["tail", "middle", "head"]
    assert tuned["tuning_cpu_s"] == 2.0 * len(CS)
