"""Trainings whose rows are on disk: the bits of those in memory, bytes read, memory, damage."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.support.svm_problems import svm_dataset, svm_problem
from xcray.arrays import CSR, frozen
from xcray.data.dataset import Dataset
from xcray.data.metric_forest.directory import (
    StoredForest,
    build_forest_directory,
    open_forest,
)
from xcray.errors import Corrupt, ParameterError
from xcray.kernels.sparse import take_rows
from xcray.solvers.indexed_bcd import paged_rows
from xcray.solvers.indexed_bcd.one_vs_rest import HingeState
from xcray.solvers.indexed_bcd.paged_rows import PagedRows
from xcray.solvers.indexed_bcd.selection import (
    AdaptiveLeaves,
    ForestLeaves,
    LeafScan,
    RandomLeaves,
    RandomPages,
)
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver

FIRST = frozen([0], np.int32)
SMALL = {"C": 1.0, "eps": 0.01, "first_rows": 200, "query_rows": 100, "leaf_rows": 16}
ROWS = 8_000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set with a forest, of 8,000 rows and 16 features."""
    problem = svm_problem(5, n=ROWS, d=16, flipped=0.0)
    dataset = svm_dataset(problem, tmp_path_factory.mktemp("data") / "svm")
    build_forest_directory(dataset, 16)
    return dataset


def n_bytes(dataset: Dataset) -> int:
    """Return the bytes of the rows."""
    return 8 * (dataset.train.X.nnz + dataset.train.n_rows)


def paged(solver: IndexedBCDSolver, dataset: Dataset, limit: int) -> HingeState:
    """Return the state of a worker with `limit` bytes; its rows are on disk."""
    local = solver.load_dataset(dataset, limit)
    assert isinstance(local.store, PagedRows)
    return local


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(each, marks=[pytest.mark.drill] if each in ("exact", "pages") else [])
        for each in (*SELECTIONS, "auto")
    ],
)
def test_the_bits_are_those_in_memory(dataset: Dataset, selection: str) -> None:
    """The limit of a job is shared among its workers, so bits must not depend on the share."""
    solver = IndexedBCDSolver(**SMALL, selection=selection)
    whole = solver.solve(solver.load_dataset(dataset, 2 * n_bytes(dataset)), FIRST)
    assert whole.records["bytes_read"] == 0
    for divisor in (2, 10, 25):
        local = paged(solver, dataset, n_bytes(dataset) // divisor)
        ours = solver.solve(local, FIRST)
        assert ours.W.data.tobytes() == whole.W.data.tobytes(), divisor
        assert ours.bias.tobytes() == whole.bias.tobytes(), divisor
        names = [name for name in ours.records.dtype.names or () if name != "bytes_read"]
        assert ours.records[names].tolist() == whole.records[names].tolist(), divisor
        assert ours.records["bytes_read"] == local.store.bytes_read > 0, divisor


@pytest.mark.parametrize("selection", SELECTIONS)
def test_every_selection_reaches_the_certified_objective(dataset: Dataset, selection: str) -> None:
    solver = IndexedBCDSolver(**SMALL, selection=selection)
    whole = solver.solve(solver.load_dataset(dataset), FIRST).records[0]
    ours = solver.solve(paged(solver, dataset, n_bytes(dataset) // 4), FIRST).records
    assert solver.certified(ours).all()
    assert ours["objective"][0] == pytest.approx(whole["objective"], rel=2e-2)


def test_it_stays_within_the_limit(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, solver = n_bytes(dataset) // 10, IndexedBCDSolver(**SMALL, selection="forest")
    local = paged(solver, dataset, limit)
    store, sizes = local.store, list[int]()
    assert isinstance(store, PagedRows)
    decode = paged_rows.decode_page

    def measure(stored: StoredForest, page: int, data: bytes) -> CSR:
        sizes.append(store.memory_bytes)
        return decode(stored, page, data)

    monkeypatch.setattr(paged_rows, "decode_page", measure)
    solver.solve(local, FIRST)
    assert 0.9 * limit < max(sizes) <= limit


def test_pages_are_those_of_any_order_in_the_smallest_cache(dataset: Dataset) -> None:
    stored = open_forest(dataset, 16)
    pages, rng = stored.indexed.pages, np.random.default_rng(0)
    sizes = np.diff(stored.file.offsets) + 8 * (np.diff(pages.indptr) + 1)
    limit, large = 16 * int(sizes.max()), np.flatnonzero(sizes > 0.9 * sizes.max())
    store = PagedRows(stored, np.ones(ROWS), ForestLeaves(stored.indexed).zones, limit)
    every = np.arange(ROWS)
    store.activate(every[: store._count_fitting(every)])  # the cache has what is left
    for _ in range(300):
        order = rng.permutation(large[:12])
        visits = store.visits(order, paged_rows._plan_all(order))
        for page, visit in zip(order, visits, strict=True):
            first, last = pages.indptr[page : page + 2]
            expected = take_rows(dataset.train.X, pages.rows[first:last].astype(np.int64))
            assert visit.rows.first == first
            assert visit.rows.X.data.tobytes() == expected.data.tobytes()
        assert store.memory_bytes <= limit


def test_auto_chooses_by_the_limit(dataset: Dataset) -> None:
    solver = IndexedBCDSolver(**SMALL, selection="auto")
    assert type(solver.load_dataset(dataset).selection) is RandomPages
    assert type(solver.load_dataset(dataset, 2 * n_bytes(dataset)).selection) is AdaptiveLeaves
    assert type(paged(solver, dataset, n_bytes(dataset) // 4).selection) is AdaptiveLeaves
    for name, kind in (("exact", LeafScan), ("pages", RandomLeaves), ("forest", ForestLeaves)):
        solver = IndexedBCDSolver(**SMALL, selection=name)
        assert type(paged(solver, dataset, n_bytes(dataset) // 4).selection) is kind


def bytes_of_system(threads: Iterable[threading.Thread]) -> int | None:
    """Return the bytes that threads have read; None if the system does not count them."""
    counters = [Path(f"/proc/self/task/{each.native_id}/io") for each in threads]
    if not all(path.exists() for path in counters):
        return None
    return sum(int(path.read_text().split()[1]) for path in counters)


def test_bytes_read_are_those_of_the_system(dataset: Dataset) -> None:
    solver = IndexedBCDSolver(**SMALL, selection="forest")
    local = paged(solver, dataset, n_bytes(dataset) // 10)
    others = {*threading.enumerate()} - {threading.current_thread()}
    solver.solve(local, FIRST)  # compiles or loads the kernels, and starts the thread that reads
    threads = {*threading.enumerate()} - others
    before, counted = bytes_of_system(threads), local.store.bytes_read
    solver.solve(local, FIRST)
    after, counted = bytes_of_system(threads), local.store.bytes_read - counted
    assert counted > n_bytes(dataset) // 10
    if before is not None and after is not None:
        assert counted <= after - before <= counted + 100_000


def test_a_second_class_reuses_the_pages_in_the_cache(dataset: Dataset) -> None:
    solver = IndexedBCDSolver(**SMALL, selection="forest")
    local = paged(solver, dataset, n_bytes(dataset) * 4 // 5)
    first, second = (solver.solve(local, FIRST).records["bytes_read"][0] for _ in range(2))
    assert second < first


def test_threads_have_their_own_memory_and_the_same_bits(dataset: Dataset) -> None:
    solver = IndexedBCDSolver(**SMALL, selection="forest")
    local = paged(solver, dataset, n_bytes(dataset) // 10)
    clone = local.clone_for_thread()
    one, two = (solver.solve(each, FIRST) for each in (local, clone))
    assert one.digest() == two.digest()
    assert clone.store is not local.store


def test_a_damaged_page_is_refused_by_number(tmp_path: Path) -> None:
    dataset = svm_dataset(svm_problem(5, n=5_000, d=16), tmp_path / "svm")
    build_forest_directory(dataset, 16)
    file = open_forest(dataset, 16).file
    content = bytearray(file.path.read_bytes())
    content[file.offsets[3] + 1] ^= 1
    file.path.write_bytes(content)
    solver = IndexedBCDSolver(**SMALL, selection="exact")
    local = paged(solver, dataset, n_bytes(dataset) // 4)
    with pytest.raises(Corrupt, match=r"page 3 of pages.bin .*`xcray data index .*svm`"):
        solver.solve(local, FIRST)


def test_a_limit_without_a_forest_or_room_for_pages_names_the_fix(
    dataset: Dataset, tmp_path: Path
) -> None:
    solver = IndexedBCDSolver(**SMALL)
    other = svm_dataset(svm_problem(5, n=5_000), tmp_path / "other")
    with pytest.raises(ParameterError, match=r"run `xcray data index .*other` first"):
        solver.load_dataset(other, n_bytes(other) // 4)
    with pytest.raises(ParameterError, match="smaller --leaf-size"):
        solver.load_dataset(dataset, 10_000)
