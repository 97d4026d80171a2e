"""A metric forest in the directory of its data set, built within a memory limit.

metric-forest/
  manifest.json   content hash of the data set, rows of a leaf, sizes, SHA-256 of the files
  forest.arrow    nodes, order of the rows, norms; position and CRC-32 of every page
  pivots.arrow    the rows that represent nodes
  pages.bin       the rows in the order of the leaves; a page is contiguous: indices, then values
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from xcray.arrays import CSR, Int32, Int64
from xcray.data.dataset import FOREST, Dataset
from xcray.data.metric_forest.check import check_forest, check_page_sizes
from xcray.data.metric_forest.forest import (
    LEAF_ROWS,
    TREE_ROWS,
    ForestBuilder,
    IndexedRows,
    Tree,
    assign_trees,
    build_tree,
    extended_norms,
)
from xcray.data.metric_forest.row_spill import RowSpill
from xcray.errors import Corrupt, ParameterError, XcrayError
from xcray.kernels.sparse import row_range, take_rows
from xcray.kernels.training.dual_hinge import Pages
from xcray.kernels.training.metric_forest import PIVOTS, Forest
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.storage.arrow import read_csr, write_matrix
from xcray.storage.atomic import (
    create_staging_directory,
    discard_directory,
    file_digests,
    publish_directory,
    read_json,
    verify_files,
    write_json,
)
from xcray.system.units import format_bytes

DIRECTORY: Final = FOREST
MANIFEST, NODES, PIVOT_ROWS, PAGES = "manifest.json", "forest.arrow", "pivots.arrow", "pages.bin"
SCHEMA_VERSION: Final = 2
MIN_LEAF_ROWS, MAX_LEAF_ROWS = 16, TREE_ROWS
DEFAULT_LIMIT: Final = 1 << 30
BYTES_PER_ROW: Final = 64  # of the data set, during a build
BYTES_PER_ENTRY: Final = 8  # column index and value


class TreeMap(Protocol):
    """Builds the trees of blocks, somewhere.

    in_flight: blocks that are taken before the tree of the first of them is returned.
    """

    in_flight: int

    def __call__(
        self, blocks: Iterator[tuple[Int64, CSR]], leaf_rows: int
    ) -> Iterator[tuple[Int64, CSR, Tree]]:
        """Yield each block with its tree, in their order. Blocks are numbered from 0."""


class TreesInProcess(TreeMap):
    """Builds one tree after the other in this process."""

    in_flight = 1

    def __call__(
        self, blocks: Iterator[tuple[Int64, CSR]], leaf_rows: int
    ) -> Iterator[tuple[Int64, CSR, Tree]]:
        """Yield each block with its tree."""
        for number, (members, block) in enumerate(blocks):
            yield members, block, build_tree(block, number, leaf_rows)


class PageFile(NamedTuple):
    """The pages of rows in a file.

    path: of the file, and of temporary files next to it. offsets: (pages + 1,) in the file.
    checksums: (pages,) CRC-32. lengths: (N,) entries of each row, by position. name: of the data
    set's directory, for messages.
    """

    path: Path
    offsets: Int64
    checksums: np.ndarray
    lengths: Int32
    n_cols: int
    name: str


class StoredForest(NamedTuple):
    """A forest on disk. Its arrays are views of mapped files; the rows are read page by page."""

    indexed: IndexedRows
    file: PageFile


def has_forest(dataset: Dataset) -> bool:
    """Return whether the directory of the data set holds a forest."""
    return (dataset.path / DIRECTORY).exists()


def open_forest(dataset: Dataset, leaf_rows: int) -> StoredForest:
    """Map the forest in the directory of a data set.

    Raises Corrupt if it is damaged or belongs to other data, ParameterError if its leaves do not
    have `leaf_rows`; both name the command that builds it again.
    """
    folder = dataset.path / DIRECTORY
    try:
        manifest = read_json(folder / MANIFEST)
        _check_manifest(dataset, manifest)
        if manifest["leaf_rows"] != leaf_rows:
            raise ParameterError(
                f"the metric forest of {dataset.path.name} has leaves of {manifest['leaf_rows']} "
                f"rows, not {leaf_rows}: train with leaf_rows={manifest['leaf_rows']}, or run "
                f"`xcray data index {dataset.path} --leaf-size {leaf_rows}`"
            )
        files = manifest["files"]
        verify_files(folder, {name: files[name] for name in (NODES, PIVOT_ROWS)})
        arrays = read_arrays(folder / NODES)
        indexed = _indexed_rows(arrays, read_csr(folder / PIVOT_ROWS))
        check_forest(indexed, (dataset.train.n_rows, dataset.n_features))
        _check_page_file(folder / PAGES, arrays)
    except (Corrupt, OSError, LookupError, TypeError, XcrayError) as error:
        if isinstance(error, ParameterError):
            raise
        reason = str(error) if isinstance(error, XcrayError) else type(error).__name__
        raise Corrupt(
            f"the metric forest of {dataset.path.name} cannot be used: {reason}; "
            f"{_repair_hint(str(dataset.path))}",
            file=DIRECTORY,
        ) from error
    file = PageFile(
        folder / PAGES,
        arrays["offsets"],
        arrays["checksums"],
        arrays["lengths"],
        dataset.n_features,
        str(dataset.path),
    )
    return StoredForest(indexed, file)


def _repair_hint(name: str) -> str:
    """Return how to repair the forest of the directory `name`."""
    return f"build it again with `xcray data index {name}`"


def check_page(file: PageFile, page: int, data: bytes) -> None:
    """Raise Corrupt, with the command that repairs it, unless a page has its size and checksum."""
    size = int(file.offsets[page + 1] - file.offsets[page])
    if len(data) != size or zlib.crc32(data) != file.checksums[page]:
        raise damaged_page(file, page, "its checksum differs")


def damaged_page(file: PageFile, page: int, problem: str) -> Corrupt:
    """Return the error for a page that cannot be used, with the command that repairs it."""
    return Corrupt(
        f"page {page} of {file.path.name} is not what was written ({problem}): "
        f"{_repair_hint(file.name)}",
        file=file.path.name,
    )


def _check_page_file(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Raise Corrupt unless positions, lengths and checksums are those of the pages in the file."""
    offsets = arrays["offsets"]
    check_page_sizes(arrays["lengths"], offsets, arrays["indptr"], BYTES_PER_ENTRY)
    if len(arrays["checksums"]) != len(offsets) - 1 or offsets[0] != 0:
        raise Corrupt("it has other checksums than pages")
    if offsets[-1] != path.stat().st_size:
        raise Corrupt(f"{PAGES} does not have the bytes of its pages")


def _check_manifest(dataset: Dataset, manifest: Any) -> None:
    """Raise Corrupt if a manifest is of another version or another data set."""
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise Corrupt(f"it has schema version {manifest['schema_version']}, not {SCHEMA_VERSION}")
    if manifest["content_hash"] != dataset.content_hash:
        raise Corrupt(
            f"it belongs to other data, with content hash {str(manifest['content_hash'])[:12]}"
        )


def _indexed_rows(arrays: dict[str, np.ndarray], pivots: CSR) -> IndexedRows:
    """Return the forest of the stored arrays."""
    forest = Forest(
        arrays["first_child"],
        arrays["n_children"],
        arrays["leaf"],
        arrays["roots"],
        arrays["products"],
        pivots,
        arrays["pivot_norms"],
    )
    pages = Pages(arrays["indptr"], arrays["rows"])
    return IndexedRows(forest, pages, arrays["positions"], arrays["norms"], arrays["trees"])


def build_forest_directory(
    dataset: Dataset,
    leaf_rows: int = LEAF_ROWS,
    memory_limit: int = DEFAULT_LIMIT,
    tree_map: TreeMap | None = None,
) -> Path:
    """Build the forest of the training rows, and replace the one in the directory.

    One pass over the rows writes them, grouped by tree, to a temporary file; then the trees are
    built from it. leaf_rows: most rows of a leaf. memory_limit: bytes of anonymous memory, in
    addition to those of the process before. tree_map: builds the trees; None for this process. The
    files have the same bytes with every tree_map. Raises ParameterError if the memory limit is too
    small or `leaf_rows` is out of range.
    """
    if not MIN_LEAF_ROWS <= leaf_rows <= MAX_LEAF_ROWS:
        raise ParameterError(
            f"leaves must have {MIN_LEAF_ROWS} to {MAX_LEAF_ROWS} rows, not {leaf_rows}"
        )
    X, target = dataset.train.X, dataset.path / DIRECTORY
    tree_map = tree_map or TreesInProcess()
    chunk_bytes = _check_limit(X, memory_limit, tree_map.in_flight)
    staged = create_staging_directory(target)
    try:
        blocks = _group_by_tree(X, staged, chunk_bytes)
        _write_forest(X, tree_map(blocks, leaf_rows), staged)
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "content_hash": dataset.content_hash,
            "leaf_rows": leaf_rows,
            "n_rows": X.n_rows,
            "n_features": dataset.n_features,
            "files": file_digests(staged),
        }
        write_json(staged / MANIFEST, manifest)
        if target.exists():
            discard_directory(target)
        publish_directory(staged, target)
    finally:
        discard_directory(staged)
    return target


def _check_limit(X: CSR, memory_limit: int, in_flight: int) -> int:
    """Return the bytes of a chunk of rows. Raises ParameterError if a build does not fit."""
    trees = max(1, -(-X.n_rows // TREE_ROWS))
    tree = BYTES_PER_ENTRY * X.nnz // trees + 8 * PIVOTS * (X.n_cols + 1) + 100 * TREE_ROWS
    needed = BYTES_PER_ROW * X.n_rows + (3 + in_flight) * tree
    if memory_limit < needed:
        raise ParameterError(
            f"the metric forest of {X.n_rows:,} rows needs {format_bytes(needed)}, the memory limit"
            f" leaves {format_bytes(memory_limit)}: raise --memory-limit"
            + (", or use fewer workers" if in_flight > 1 else "")
        )
    return max(1 << 16, (memory_limit - BYTES_PER_ROW * X.n_rows) // 8)


def _group_by_tree(X: CSR, folder: Path, chunk_bytes: int) -> Iterator[tuple[Int64, CSR]]:
    """Write the rows to temporary files in one pass, and yield the rows of every tree.

    Yields row numbers (n,), ascending, and the rows (n, D), in the order of the trees.
    """
    tree_of, lengths = assign_trees(X.n_rows), np.diff(X.indptr).astype(np.int32)
    spill, lo = RowSpill(tree_of, lengths, X.n_cols, folder), 0
    while lo < X.n_rows:
        limit = X.indptr[lo] + chunk_bytes // BYTES_PER_ENTRY
        hi = max(lo + 1, int(np.searchsorted(X.indptr, limit, "right")) - 1)
        spill.add(np.arange(lo, hi), row_range(X, lo, hi))
        lo = hi
    for tree in range(int(tree_of.max(initial=0)) + 1):
        yield spill.read_zone(tree)


def _write_forest(X: CSR, trees: Iterator[tuple[Int64, CSR, Tree]], folder: Path) -> None:
    """Write all files except the manifest. trees: row numbers, rows and tree of each block."""
    merged, norms = ForestBuilder(X.n_cols), np.empty(X.n_rows)
    rows, lengths, sizes, checksums = list[Int32](), list[Int32](), [0], list[int]()
    with open(folder / PAGES, "xb") as out:
        for members, block, tree in trees:
            norms[members] = extended_norms(block)
            for leaf in tree.leaves:
                page = take_rows(block, leaf)
                data = page.indices.tobytes() + page.data.tobytes()
                out.write(data)
                sizes.append(sizes[-1] + len(data))
                checksums.append(zlib.crc32(data))
                rows.append(members[leaf].astype(np.int32))
                lengths.append(np.diff(page.indptr).astype(np.int32))
            merged.add(tree)
        out.flush()
        os.fsync(out.fileno())
    indexed = merged.finish(np.concatenate(rows), norms)
    forest = indexed.forest
    write_matrix(folder / PIVOT_ROWS, forest.pivots)
    arrays: dict[str, np.ndarray] = {
        "first_child": forest.first_child,
        "n_children": forest.n_children,
        "leaf": forest.leaf,
        "roots": forest.roots,
        "products": forest.products,
        "pivot_norms": forest.norms,
        "indptr": indexed.pages.indptr,
        "rows": indexed.pages.rows,
        "positions": indexed.positions,
        "norms": indexed.norms,
        "trees": indexed.trees,
        "offsets": np.array(sizes, np.int64),
        "checksums": np.array(checksums, np.uint32),
        "lengths": np.concatenate(lengths),
    }
    write_arrays(folder / NODES, arrays)
