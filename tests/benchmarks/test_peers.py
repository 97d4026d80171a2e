"""The comparison with other libraries: samples, files, restricted results and the objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.common import images
from benchmarks.peers.accuracy import CS, peer_rows, prepare
from benchmarks.peers.data import measures_all, measures_sample, sample, write_folder, write_xc
from benchmarks.peers.run import cached
from benchmarks.peers.worker import best, padded
from benchmarks.training.objective import compare, objective
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


def test_the_xc_file_holds_the_same_rows_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = sp.random_array((40, 30), density=0.2, rng=rng, dtype=np.float32).tocsr()
    Y = sp.csr_matrix(rng.random((40, 6)) < 0.3, dtype=np.float32)
    write_xc(sp.csr_matrix(X), Y, tmp_path / "train.txt")
    read = build("xc", {"train": tmp_path / "train.txt"}, tmp_path / "set").train
    assert (read.X.to_scipy() != X).nnz == 0
    assert (read.Y.to_scipy() != Y).nnz == 0


def test_a_task_folder_holds_the_chosen_columns(tmp_path: Path) -> None:
    data = small(tmp_path)
    columns = sample(data.label_counts, 5)
    folder = write_folder(data, columns, tmp_path / "task")
    Y = sp.load_npz(folder / "train_y.npz")
    assert Y.shape == (data.train.n_rows, 5)
    assert Y.sum(axis=0).tolist()[0] == data.label_counts[columns].tolist()
    assert (sp.load_npz(folder / "test_x.npz") != data["test"].X.to_scipy()).nnz == 0


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


def test_missing_predictions_count_as_misses(tmp_path: Path) -> None:
    data = small(tmp_path)
    none = padded([[] for _ in range(data["test"].n_rows)], 5)
    assert measures_all(none, data)["P@1"] == 0.0
    assert padded([[4, 2], [1, 2, 3, 4]], 3).tolist() == [[4, 2, -1], [1, 2, 3]]
    assert best(np.array([[1.0, 3.0, 3.0, -np.inf]]), 5).tolist() == [[1, 2, 0, 3, -1]]


def test_the_c_of_a_peer_is_tuned_on_held_out_training_rows(tmp_path: Path) -> None:
    those = prepare(small(tmp_path), tmp_path / "tasks")
    learn, held = (sp.load_npz(those.learn / f"{part}_x.npz") for part in ("train", "test"))
    assert learn.shape[0] + held.shape[0] == those.data.train.n_rows
    assert held.shape[0] == those.held_Y.n_rows

    def train(task: dict[str, Any], run: str) -> dict[str, Any]:
        rows = held.shape[0] if "learn" in run else those.data["test"].n_rows
        label = 0 if task["C"] == 3.0 else -1  # only C = 3 answers anything
        return {"top": np.full((rows, 5), label).tolist(), "train_cpu_s": 2.0}

    default, tuned = peer_rows(those, "pecos_tree", False, train)
    assert (default["C"], tuned["C"]) == (1.0, 3.0)
    assert default["P@1"] == 0.0 < tuned["P@1"]
    assert tuned["tuning_cpu_s"] == 2.0 * len(CS)


def test_the_objective_by_hand() -> None:
    X, y = sp.csr_matrix(np.array([[1.0, 0.0], [0.0, 2.0]])), np.array([1, -1])
    # margins 0.5 + 0.25 = 0.75 and -(-2 + 0.25) = 1.75; only the first is below 1, by 0.25
    assert (
        objective(X, y, np.array([0.5, -1.0]), 0.25, 4.0)
        == 0.5 * (0.25 + 1.0 + 0.0625) + 4.0 * 0.0625
    )


def test_xcray_and_liblinear_agree_on_the_optimum(tmp_path: Path) -> None:
    data = small(tmp_path)
    row = compare("synthetic", data.train, sample(data.label_counts, 8), 1e-5, 1e-6)
    assert row["liblinear_converged"] == row["certified"] == row["within_bar"] == 8
    assert row["record_differs_at_most"] < 1e-6


def test_a_failed_run_reports_the_reason_and_is_not_cached(tmp_path: Path) -> None:
    task = {
        "peer": "xcray",
        "package": "xcray",
        "k": 5,
        "core": None,
        "dataset": str(tmp_path / "nowhere"),
        "params": {},
        "columns": None,
        "sample_only": False,
    }
    run = cached(task, Path(), 60.0, tmp_path / "run.json", False)
    assert "nowhere" in run["failed"]
    (tmp_path / "run.json").write_text('{"task": {}, "train_cpu_s": 1.0}')
    assert "failed" in cached(task, Path(), 60.0, tmp_path / "run.json", False)


def test_images_become_rows_between_0_and_1(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    arrays = {
        "X_train": pixels,
        "y_train": np.array([0, 2, 1, 0]),
        "X_test": pixels[:1],
        "y_test": np.array([2]),
    }
    np.savez(tmp_path / "tiny.npz", **arrays)
    data = images("tiny", tmp_path / "tiny.npz", tmp_path / "set")
    assert data.n_labels == 3
    assert np.allclose(data.train.X.to_scipy().toarray(), pixels.reshape(4, 6) / 255.0)
    assert data["test"].Y.indices.tolist() == [2]
