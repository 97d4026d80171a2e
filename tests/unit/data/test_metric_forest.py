"""The metric forest on disk: the bits of the one in memory, damage, other data, memory."""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.svm_problems import svm_dataset, svm_problem
from xcray.arrays import CSR, frozen
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.data.metric_forest import directory
from xcray.data.metric_forest.directory import build_forest_directory, open_forest
from xcray.data.metric_forest.forest import build_forest, build_tree
from xcray.data.metric_forest.page_reader import PageReader, decode_page
from xcray.errors import Corrupt, ParameterError, Unavailable
from xcray.kernels.sparse import take_rows
from xcray.solvers.indexed_bcd.solver import IndexedBCDSolver
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.storage.atomic import file_digests, write_json

SMALL = {"C": 0.1, "first_rows": 60, "query_rows": 40, "max_sweeps": 3000}
FIRST = frozen([0], np.int32)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Return a data set of two trees."""
    return svm_dataset(svm_problem(3, n=20_000), tmp_path / "svm")


@pytest.mark.parametrize("memory_limit", [directory.DEFAULT_LIMIT, 13_000_000])
def test_it_is_the_forest_in_memory(dataset: Dataset, memory_limit: int) -> None:
    build_forest_directory(dataset, 100, memory_limit)
    stored, built = open_forest(dataset, 100).indexed, build_forest(dataset.train.X, 100)
    for name in ("forest", "pages"):
        for ours, theirs in zip(getattr(stored, name), getattr(built, name), strict=True):
            if isinstance(ours, tuple):  # the pivots
                assert (ours.to_scipy() != theirs.to_scipy()).nnz == 0
            else:
                assert ours.tobytes() == theirs.tobytes()
    assert stored.norms.tobytes() == built.norms.tobytes()
    assert stored.positions.tobytes() == built.positions.tobytes()
    assert stored.trees.tolist() == built.trees.tolist()


def test_a_page_is_one_range_of_the_file(dataset: Dataset) -> None:
    build_forest_directory(dataset)
    stored = open_forest(dataset, 256)
    pages, content = stored.indexed.pages, stored.file.path.read_bytes()
    for page in (0, 7, pages.n_pages - 1):
        rows = pages.rows[pages.indptr[page] : pages.indptr[page + 1]].astype(np.int64)
        expected = take_rows(dataset.train.X, rows)
        piece = content[stored.file.offsets[page] : stored.file.offsets[page + 1]]
        assert piece == expected.indices.tobytes() + expected.data.tobytes()


def test_every_training_uses_it_and_gives_the_same_bits(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    solvers = [IndexedBCDSolver(**SMALL, selection="forest", s=s) for s in (0.5, 2.0)]
    before = [solver.solve(solver.load_dataset(dataset), FIRST).digest() for solver in solvers]
    build_forest_directory(dataset)
    monkeypatch.setattr("xcray.solvers.indexed_bcd.solver.build_forest", None)
    after = [solver.solve(solver.load_dataset(dataset), FIRST).digest() for solver in solvers]
    assert before == after


def test_another_leaf_size_names_both_fixes(dataset: Dataset) -> None:
    build_forest_directory(dataset, 100)
    with pytest.raises(ParameterError, match=r"leaf_rows=100, or run .*--leaf-size 256"):
        IndexedBCDSolver(selection="forest").load_dataset(dataset)


def cut(path: Path) -> None:
    """Remove the last two bytes of a file."""
    path.write_bytes(path.read_bytes()[:-2])


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (directory.NODES, flip),
        (directory.PIVOT_ROWS, flip),
        (directory.PIVOT_ROWS, Path.unlink),
        (directory.PAGES, cut),
        (directory.PAGES, Path.unlink),
        (directory.MANIFEST, cut),
        (directory.MANIFEST, Path.unlink),
    ],
)
def test_damage_is_refused_with_the_fix(
    dataset: Dataset, file: str, damage: Callable[[Path], None]
) -> None:
    damage(build_forest_directory(dataset) / file)
    with pytest.raises(Corrupt, match=r"forest of svm .*again with `xcray data index .*svm`"):
        open_forest(dataset, 256)
    build_forest_directory(dataset)
    open_forest(dataset, 256)


def reseal(folder: Path) -> None:
    """Write the checksums of changed files into the manifest of a forest."""
    manifest = json.loads((folder / directory.MANIFEST).read_text())
    (folder / directory.MANIFEST).unlink()
    write_json(folder / directory.MANIFEST, {**manifest, "files": file_digests(folder)})


def forge(folder: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Change an array of a forest, and seal it again."""
    arrays = {each: array.copy() for each, array in read_arrays(folder / directory.NODES).items()}
    change(arrays[name])
    write_arrays(folder / directory.NODES, arrays)
    reseal(folder)


def put(position: object, value: float) -> Callable[[np.ndarray], None]:
    """Return a function that writes a value into an array."""
    return lambda array: array.__setitem__(position, value)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("first_child", put(0, 10**8)),
        ("first_child", put(0, -5)),
        ("first_child", put(0, 0)),  # a circle
        ("first_child", put(0, 2)),
        ("n_children", put(0, 10**6)),
        ("n_children", put(0, -1)),
        ("n_children", put(0, 0)),
        ("leaf", put(-1, 10**8)),
        ("leaf", put(-1, -7)),
        ("leaf", put(0, 0)),
        ("roots", put(0, 10**8)),
        ("roots", put(1, 0)),
        ("products", put((1, 0), np.nan)),
        ("products", put((1, 0), 0.25)),
        ("pivot_norms", put(3, 7.0)),
        ("indptr", put(1, 10**9)),
        ("indptr", put(1, -1)),
        ("rows", put(0, 10**8)),
        ("rows", put(0, -1)),
        ("rows", lambda array: array.__setitem__(0, array[1])),
        ("positions", put(0, 10**8)),
        ("norms", put(0, np.nan)),
        ("norms", put(0, np.inf)),
        ("norms", put(0, 0.0)),
        ("trees", put(1, 10**8)),
        ("offsets", put(1, 2**60)),
        ("offsets", put(1, -8)),
        ("lengths", put(0, 2**31 - 1)),
        ("lengths", put(0, -1)),
    ],
)
def test_a_forged_forest_is_refused_when_it_is_opened(
    dataset: Dataset, name: str, change: Callable[[np.ndarray], None]
) -> None:
    forge(build_forest_directory(dataset), name, change)
    with pytest.raises(Corrupt, match=r"forest of svm .*again with `xcray data index .*svm`"):
        open_forest(dataset, 256)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(np.int32, 10**9), (np.int32, -1), (np.float32, np.nan), (np.float32, 3.0)],
)
def test_a_forged_page_is_refused_when_it_is_read(
    dataset: Dataset, kind: type, value: float
) -> None:
    folder = build_forest_directory(dataset)
    stored = open_forest(dataset, 256)
    first, last = (int(offset) for offset in stored.file.offsets[:2])
    content = bytearray(stored.file.path.read_bytes())
    page = np.frombuffer(content, kind, (last - first) // 4, first)
    page[0 if kind is np.int32 else len(page) // 2] = value
    stored.file.path.write_bytes(content)
    checksum = zlib.crc32(content[first:last])
    forge(folder, "checksums", put(0, checksum))
    stored = open_forest(dataset, 256)
    (data,) = PageReader(stored.file).read([0])
    with pytest.raises(Corrupt, match=r"page 0 .*again with `xcray data index .*svm`"):
        decode_page(stored, 0, data)


def test_the_forest_of_other_data_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    other = svm_dataset(svm_problem(4, n=20_000), tmp_path / "other")
    build_forest_directory(other).rename(dataset.path / directory.DIRECTORY)
    with pytest.raises(Corrupt, match=r"other data.*`xcray data index .*svm`"):
        IndexedBCDSolver(selection="forest").load_dataset(dataset)


def test_too_little_memory_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ParameterError, match="raise --memory-limit"):
        build_forest_directory(dataset, 256, 1_000_000)
    assert sorted(path.name for path in dataset.path.iterdir()) == [
        "labels.arrow",
        "manifest.json",
        "train",
    ]


def test_the_command_builds_it(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "index", str(dataset.path)]
    assert main([*command, "--memory-limit", "1MiB"]) == 2  # less than the process has already
    assert "the memory limit leaves 0 bytes: raise --memory-limit" in capsys.readouterr().err
    command += ["--memory-limit", "100GiB"]  # whatever the tests before have left
    assert main([*command, "--leaf-size", "64", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["rows"] == 20_000
    assert figures["trees"] == 2
    assert figures["leaves"] >= 20_000 / 64
    assert open_forest(dataset, 64).indexed.pages.n_pages == figures["leaves"]
    assert main([*command, "--leaf-size", "2"]) == 2
    assert "16 to 16384" in capsys.readouterr().err


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return the content of the files of a forest."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.drill
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_trees_of_ray_have_the_same_bytes(dataset: Dataset, ray: object, workers: int) -> None:
    from xcray.workers.ray.tree_tasks import TreesOnRay

    alone = bytes_of(build_forest_directory(dataset, 64))
    shared = bytes_of(build_forest_directory(dataset, 64, tree_map=TreesOnRay(workers)))
    assert shared == alone


@pytest.mark.drill
def test_a_tree_of_a_killed_worker_is_built_again(
    dataset: Dataset, ray: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xcray.workers.ray import tree_tasks

    alone, mark = bytes_of(build_forest_directory(dataset, 64)), str(tmp_path / "killed")

    def killed_once(X: CSR, tree: int, leaf_rows: int) -> object:
        if tree == 1 and not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return build_tree(X, tree, leaf_rows)

    monkeypatch.setattr(tree_tasks, "build_tree", killed_once)
    shared = bytes_of(build_forest_directory(dataset, 64, tree_map=tree_tasks.TreesOnRay(2)))
    assert Path(mark).exists()
    assert shared == alone


def test_trees_end_with_a_named_error_when_ray_has_ended(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tree is ever ready, and the head has ended."""
    from xcray.workers.ray import cluster_state, tree_tasks

    task = SimpleNamespace(remote=lambda *args: "reference")
    ray = SimpleNamespace(
        remote=lambda **options: lambda build: task, wait=lambda refs, timeout: ([], refs)
    )
    monkeypatch.setattr(tree_tasks, "ray", ray)
    monkeypatch.setattr(
        cluster_state.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:1")
    )
    monkeypatch.setattr(cluster_state, "HEAD_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="has ended") as raised:
        build_forest_directory(dataset, 64, tree_map=tree_tasks.TreesOnRay(1))
    assert raised.value.code == "RAY_ENDED"
