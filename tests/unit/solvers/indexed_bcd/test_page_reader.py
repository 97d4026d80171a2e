"""Pages in object storage: the bits of those on disk, requests, damage, outages."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.s3 import BUCKET, FaultProxy, cut_once
from tests.support.svm_problems import svm_dataset, svm_problem
from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.data.objectstore.remote_dataset import push_dataset
from xcray.errors import Corrupt, ParameterError, Unavailable
from xcray.solvers.indexed_bcd import page_reader
from xcray.solvers.indexed_bcd.forest_directory import build_forest_directory, open_forest
from xcray.solvers.indexed_bcd.page_reader import (
    PageRange,
    PagesInObjectStorage,
    PagesOnDisk,
    join_pages,
    open_pages,
    read_all_rows,
)
from xcray.solvers.indexed_bcd.paged_rows import PagedRows
from xcray.solvers.indexed_bcd.remote_copy import cached_copy_without_rows
from xcray.solvers.indexed_bcd.row_store import ReadCounts
from xcray.solvers.indexed_bcd.solver import SELECTIONS, IndexedBCDSolver
from xcray.storage.objectstore.client import StoragePath

FIRST = frozen([0], np.int32)
SMALL = {"C": 1.0, "eps": 0.01, "first_rows": 200, "query_rows": 100, "leaf_rows": 16}
PAGES = "metric-forest/pages.arrow"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set with a forest, of 1,500 rows and 16 features."""
    problem = svm_problem(5, n=1_500, d=16, flipped=0.0)
    dataset = svm_dataset(problem, tmp_path_factory.mktemp("data") / "svm")
    build_forest_directory(dataset, 16)
    return dataset


Copy = tuple[Dataset, StoragePath]


@pytest.fixture
def copy(dataset: Dataset, uri: str) -> Copy:
    """Return a copy without rows of the data set, and its place in a storage."""
    return remote_copy(dataset, uri)


def remote_copy(dataset: Dataset, uri: str) -> Copy:
    """Push a data set; return a copy without rows, and its place."""
    place = StoragePath.parse(push_dataset(dataset.path, StoragePath.parse(uri) / "svm").uri)
    return Dataset.open(cached_copy_without_rows(place.uri)), place


def n_bytes(dataset: Dataset) -> int:
    """Return the bytes of the rows."""
    return 8 * (dataset.train.X.nnz + dataset.train.n_rows)


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([], []),
        ([3], [PageRange(3, 4)]),
        ([0, 1, 3], [PageRange(0, 2), PageRange(3, 4)]),
        ([0, 1, 2, 3], [PageRange(0, 3), PageRange(3, 4)]),  # the limit
        ([4, 5], [PageRange(4, 5), PageRange(5, 6)]),  # a page above the limit
    ],
)
def test_adjacent_pages_are_joined(pages: list[int], expected: list[PageRange]) -> None:
    offsets = np.cumsum([100, 10, 10, 10, 10, 50, 10])
    assert join_pages(pages, offsets, 30) == expected


def check_equal_records(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compare records, except what was read."""
    for name in set(ours.dtype.names or ()) - set(ReadCounts._fields):
        assert ours[name].tolist() == theirs[name].tolist()


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_bits_are_those_of_the_rows_on_disk(
    dataset: Dataset, copy: Copy, selection: str
) -> None:
    solver, limit = IndexedBCDSolver(**SMALL, selection=selection), n_bytes(dataset) // 2
    local, remote = solver.load_dataset(dataset, limit), solver.load_dataset(copy[0], limit)
    assert isinstance(remote.store, PagedRows)
    theirs, ours = solver.solve(local, FIRST), solver.solve(remote, FIRST)
    assert ours.W.data.tobytes() == theirs.W.data.tobytes()
    assert ours.bias.tobytes() == theirs.bias.tobytes()
    check_equal_records(ours.records, theirs.records)
    assert theirs.records["requests"][0] == 0
    assert 0 < ours.records["requests"][0] < ours.records["bytes_read"][0]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_rows_within_the_limit_are_read_once(
    dataset: Dataset, copy: Copy, selection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, limit = IndexedBCDSolver(**SMALL, selection=selection), 2 * n_bytes(dataset)
    theirs = solver.solve(solver.load_dataset(dataset, limit), FIRST)
    remote = solver.load_dataset(copy[0], limit)
    monkeypatch.setattr(page_reader, "open_pages", None)  # all rows are here
    ours = solver.solve(remote, FIRST)
    assert ours.W.data.tobytes() == theirs.W.data.tobytes()
    check_equal_records(ours.records, theirs.records)
    offsets = open_forest(dataset, 16).file.offsets
    n_pages_bytes = int(offsets[-1] - offsets[0])
    counted = [ours.records[name].tolist() for name in ("bytes_read", "bytes_requested")]
    assert counted == [[n_pages_bytes]] * 2
    assert ours.records["requests"][0] > 0
    for state in (remote, remote.clone_for_thread()):
        again = solver.solve(state, FIRST).records
        assert [again[name][0] for name in ReadCounts._fields] == [0, 0, 0]


def test_it_stays_within_the_limit(dataset: Dataset, copy: Copy) -> None:
    limit, solver = n_bytes(dataset) // 2, IndexedBCDSolver(**SMALL, selection="forest")
    local = solver.load_dataset(copy[0], limit)
    store, sizes = local.store, list[int]()
    assert isinstance(store, PagedRows)
    read = store._reader.read

    def measure(pages: list[int]) -> list[bytes]:
        data = read(pages)
        arriving = sum(map(len, data))  # as long as requests and pages exist
        sizes.append(store.memory_bytes + arriving)
        return data

    store._reader.read = measure  # type: ignore[method-assign]
    solver.solve(local, FIRST)
    assert 0.7 * limit < max(sizes) <= limit


def test_pages_are_read_in_any_order_with_few_requests(
    dataset: Dataset, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (open_pages(open_forest(each, 16).file) for each in (copy[0], dataset))
    assert isinstance(ours, PagesInObjectStorage)
    assert isinstance(theirs, PagesOnDisk)
    n_pages = open_forest(dataset, 16).indexed.pages.n_pages
    some = np.random.default_rng(0).permutation(n_pages // 2).tolist()
    for pages in ([7], list(range(n_pages)), some):
        assert ours.read(pages) == theirs.read(pages)
    assert ours.bytes_read == theirs.bytes_read
    assert ours.requests < 10  # the first one opens the object
    assert theirs.requests == 0


def test_all_rows_are_those_of_the_data(dataset: Dataset, copy: Copy) -> None:
    stored = open_forest(copy[0], 16)
    rows, counts = read_all_rows(stored)
    X, order = rows.to_scipy(), stored.indexed.pages.rows
    assert (X != dataset.train.X.to_scipy()[order]).nnz == 0
    assert 0 < counts.requests < counts.bytes_read == counts.bytes_requested


def damage(file: StoragePath, change: Callable[[bytes], bytes]) -> None:
    """Replace an object."""
    file.write(change(file.read(1 << 30)))


def flip(raw: bytes) -> bytes:
    """Return bytes with one that is different."""
    at = len(raw) // 2
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [(flip, r"page \d+ of pages.arrow"), (lambda raw: raw[:-1], "bytes instead of")],
)
def test_a_damaged_object_is_refused_by_name(
    copy: Copy, change: Callable[[bytes], bytes], message: str
) -> None:
    damage(copy[1] / PAGES, change)
    reader = open_pages(open_forest(copy[0], 16).file)
    n_pages = open_forest(copy[0], 16).indexed.pages.n_pages
    with pytest.raises(Corrupt, match=f"{message}.*push --again"):
        reader.read(list(range(n_pages)))


def test_a_missing_object_is_named(copy: Copy) -> None:
    file = copy[1] / PAGES
    file.filesystem.delete_file(file.path)
    with pytest.raises(Corrupt, match=r"pages\.arrow is missing.*push --again"):
        open_pages(open_forest(copy[0], 16).file).read([0])


def test_an_object_that_vanishes_is_named(dataset: Dataset, proxy: FaultProxy) -> None:
    copy, place = remote_copy(dataset, f"s3://{BUCKET}/pages-vanishes")
    reader = open_pages(open_forest(copy, 16).file)
    reader.read([0])
    place.filesystem.delete_file((place / PAGES).path)
    with pytest.raises(Corrupt, match=r"pages\.arrow is missing"):
        reader.read([1])


def test_a_broken_connection_is_retried(dataset: Dataset, proxy: FaultProxy) -> None:
    copy, _ = remote_copy(dataset, f"s3://{BUCKET}/pages-broken")
    reader, theirs = (open_pages(open_forest(each, 16).file) for each in (copy, dataset))
    proxy.fault = cut_once("pages.arrow", 100)
    assert reader.read([3, 4, 9]) == theirs.read([3, 4, 9])


def test_an_outage_is_reported_after_retries(dataset: Dataset, proxy: FaultProxy) -> None:
    copy, _ = remote_copy(dataset, f"s3://{BUCKET}/pages-outage")
    reader = open_pages(open_forest(copy, 16).file)
    reader.read([0])

    def broken(environ: dict[str, Any], answer: Any) -> Any:
        raise ConnectionResetError("no answer")

    proxy.fault, before = broken, len(proxy.requests)
    with pytest.raises(Unavailable) as error:
        reader.read([1])
    assert error.value.code == "STORAGE_AWAY"
    assert len(proxy.requests) - before > 1


def test_a_node_reads_kept_pages_from_its_disk(
    dataset: Dataset, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCRAY_PAGE_CACHE", "1GiB")
    file, pages = open_forest(copy[0], 16).file, [5, 1, 2, 9]
    first, second = open_pages(file), open_pages(file)
    expected = open_pages(open_forest(dataset, 16).file).read(pages)
    assert first.read(pages) == second.read(pages) == expected
    assert first.requests > 0
    assert first.bytes_requested == first.bytes_read == second.bytes_read
    assert (second.requests, second.bytes_requested) == (0, 0)
    position = int(file.offsets[2])
    with open(file.path.parent / "pages.kept", "r+b") as kept:
        kept.seek(position)
        kept.write(b"damage")
    assert second.read(pages) == expected  # from the storage, and kept again
    assert second.requests == 2
    third = open_pages(file)
    assert third.read(pages) == expected
    assert third.requests == 0


def test_kept_pages_stay_within_the_limit(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XCRAY_PAGE_CACHE", "100KiB")
    file = open_forest(copy[0], 16).file
    every = list(range(len(file.checksums)))
    first, second = open_pages(file), open_pages(file)
    assert first.read(every) == second.read(every)
    held = np.fromfile(file.path.parent / "pages.held", np.uint8)
    assert 0 < held.sum() < len(every)
    assert (file.path.parent / "pages.kept").stat().st_blocks * 512 <= 100 << 10
    assert 0 < second.bytes_requested < first.bytes_requested
    monkeypatch.setenv("XCRAY_PAGE_CACHE", "much")
    with pytest.raises(ParameterError):
        open_pages(file)


def test_a_full_disk_stops_keeping(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes, position: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("XCRAY_PAGE_CACHE", "1GiB")
    monkeypatch.setattr(os, "pwrite", full)
    reader = open_pages(open_forest(copy[0], 16).file)
    assert reader.read([3]) == reader.read([3])
    assert reader.requests == 3  # the first one opens the object
