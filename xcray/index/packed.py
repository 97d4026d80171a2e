"""Packed posting lists of a model: built from its weights within a memory budget and mapped.

Wide lists (more than 2**16 labels; 2 or 3 bytes per weight) contain no weights; exact scores are
computed from the weights by label. Together with these weights they are at most MAX_SIZE_RATIO
times as large as the weights alone, which is achieved by omitting the negative weights nearest to
zero.

Narrow lists (2 bytes) also contain the weights, 4 bytes each, and one byte per label for the
longest lists. Models with few labels have long rows, from which a hundred exact scores would take
longer than from the lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Float32, Int32, Int64, frozen
from xcray.errors import Corrupt, ParameterError
from xcray.kernels.merge import take_columns
from xcray.kernels.search.lists import NARROW_BYTES, UNIT_BYTES, PackedLists, narrow_units
from xcray.kernels.search.packing import count_kept, exponent_histograms, pack, wide_block_bytes
from xcray.kernels.search.validate_lists import first_invalid, is_permutation
from xcray.storage.arrow import BlobWriter, read_table

# layout of the blocks: increment it with every change of the format, so that old lists are rebuilt
# and not misread
LAYOUT_VERSION = "4"
MAX_SIZE_RATIO = 1.29  # limit of (weights by label + wide lists) / (weights by label), in bytes
# limit of the bytes that dense features add to narrow lists, relative to the weights by label
DENSE_BUDGET_RATIO = 0.06
WIDE_BYTES = 3  # bytes per label of wide lists, up to 2**24 labels
ENTRY_BYTES = 8  # bytes per weight by label: int32 and float32
# bytes of entries in memory at once; larger pieces do not fit into the caches
BUFFER_BYTES = 64 << 20
# of entries that are written at once: pieces reuse memory, where a large one needs new pages. Each
# piece of lists visits all labels, so there are at most MAX_PIECES
PIECE_BYTES = 8 << 20
MAX_PIECES = 64
DENSE_LABEL_DIVISOR = 24  # a feature can be dense if at least one in this many labels has it
MAX_BLOCK_BYTES = (1 << 32) * UNIT_BYTES  # bytes that `starts` can address


class PackingPlan(NamedTuple):
    """Layout of the lists.

    starts: (D + 1,) uint32, first unit of each feature. counts: (D,) int64, entries of each
    feature. least: smallest magnitude of the negative weights that are kept. dense_from: number of
    entries from which a feature is dense. width: bytes per label.
    """

    starts: Any
    counts: Int64
    least: float
    dense_from: int
    width: int


def label_width(n_labels: int) -> int:
    """Return the number of bytes per label."""
    return NARROW_BYTES if n_labels <= 1 << 16 else WIDE_BYTES if n_labels <= 1 << 24 else 4


def plan_lists(W: CSR) -> PackingPlan:
    """Choose which weights are omitted and which features are dense, within the size limit.

    W: (K, D), valid. Raises ParameterError if the lists would be too large to address.
    """
    n_labels, width = W.n_rows, label_width(W.n_rows)
    indices, data, least, dense_from = W.indices[: W.nnz], W.data[: W.nnz], 0.0, n_labels + 1
    counts, kept_counts = count_kept(indices, data, least, W.n_cols)
    if width == NARROW_BYTES:
        dense_from = _dense_threshold(
            kept_counts, n_labels, int(DENSE_BUDGET_RATIO * ENTRY_BYTES * W.nnz)
        )
        units = _narrow_sizes(kept_counts, n_labels, dense_from)
    else:
        budget = int((MAX_SIZE_RATIO - 1.0) * ENTRY_BYTES * W.nnz) - 4 * W.n_cols
        sizes = wide_block_bytes(indices, W.indptr, data, least, width, kept_counts)
        if int(sizes.sum()) > budget:
            least = _magnitude_cutoff(data, budget * W.nnz / max(int(sizes.sum()), 1))
            counts, kept_counts = count_kept(indices, data, least, W.n_cols)
            sizes = wide_block_bytes(indices, W.indptr, data, least, width, kept_counts)
        units = (sizes + UNIT_BYTES - 1) // UNIT_BYTES
    ends = np.concatenate([[0], np.cumsum(units)])
    if int(ends[-1]) * UNIT_BYTES >= MAX_BLOCK_BYTES:
        raise ParameterError(
            f"the index would have {int(ends[-1]) * UNIT_BYTES:,} bytes; the limit is "
            f"{MAX_BLOCK_BYTES:,}: prune the model"
        )
    return PackingPlan(ends.astype(np.uint32), counts, least, dense_from, width)


def build_lists(W: CSR) -> PackedLists:
    """Return the lists of W (K, D) in memory."""
    plan = plan_lists(W)
    blocks = np.zeros(_n_bytes(plan.starts), np.uint8)
    for offset, piece in packed_pieces(W, plan, BUFFER_BYTES):
        blocks[offset : offset + len(piece)] = piece
    blocks.flags.writeable = plan.starts.flags.writeable = False
    return PackedLists(blocks, plan.starts, plan.width, W.n_rows, plan.least)


def bias_order(b: Float32) -> Int32:
    """Return the labels by descending bias, equal biases by number: (K,) int32."""
    return frozen(np.argsort(-b.astype(np.float64), kind="stable"), np.int32)


def write_lists(
    path: Path,
    W: CSR,
    b: Float32,
    budget: int = BUFFER_BYTES,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Write the lists of W and the order of its biases; the bytes do not depend on `budget`.

    W: a valid (K, D) matrix, can be memory-mapped. budget: bytes of entries in memory at once, in
    addition to 8 K + 24 D; a feature with more entries is processed in one piece. tick: called
    after each piece.
    """
    plan = plan_lists(W)
    budget = min(budget, max(PIECE_BYTES, ENTRY_BYTES * W.nnz // MAX_PIECES))
    head = {
        "layout": LAYOUT_VERSION,
        "width": str(plan.width),
        "n_labels": str(W.n_rows),
        "least": float(plan.least).hex(),
    }
    columns = {"starts": pa.array(plan.starts), "order": pa.array(bias_order(b))}
    with BlobWriter(path, _n_bytes(plan.starts), columns, head) as out:
        for offset, piece in packed_pieces(W, plan, budget):
            out.write(offset, piece)
            del piece
            tick()


def _n_bytes(starts: Any) -> int:
    """Return the bytes of all blocks, which end with 8 unused ones."""
    return int(starts[-1]) * UNIT_BYTES + 8


def check_lists(lists: PackedLists, W: CSR, order: Int32, name: str) -> None:
    """Raise Corrupt, with the file name, unless the lists are safe for searches. One pass.

    Searches read the lists without bounds checks.
    """
    invalid = first_invalid(lists)
    if invalid >= 0:
        raise Corrupt(
            f"{name}, feature {invalid}: its list is invalid; train the model again or restore the "
            "file",
            file=name,
        )
    if not is_permutation(order):
        raise Corrupt(
            f"{name}: the order of labels is not a permutation of {len(order)} labels", file=name
        )


def is_current(path: Path) -> bool:
    """Return whether the lists in a file have the layout that this code reads.

    Raises NotFound, or Corrupt if the file is not a valid Arrow file.
    """
    return (read_table(path).schema.metadata or {}).get(b"layout") == LAYOUT_VERSION.encode()


def read_lists(path: Path, W: CSR) -> tuple[PackedLists, Int32]:
    """Map the lists and the bias order written for a (K, D) matrix W.

    Raises NotFound, or Corrupt for invalid data or another shape.
    """
    table, shape = read_table(path), W.shape
    try:
        head = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        width, n_labels, least = (
            int(head["width"]),
            int(head["n_labels"]),
            float.fromhex(head["least"]),
        )
        starts, order, blocks = (
            table.column(name).chunk(0).values.to_numpy() for name in ("starts", "order", "blocks")
        )
    except (KeyError, AttributeError, ValueError, IndexError) as error:
        raise Corrupt(
            f"index/{path.name} does not contain packed lists: {error!r}", file=path.name
        ) from None
    is_valid = (n_labels, len(starts) - 1) == shape and len(order) == n_labels
    is_valid = is_valid and (starts.dtype, order.dtype, blocks.dtype) == (
        np.uint32,
        np.int32,
        np.uint8,
    )
    if (
        not is_valid
        or width not in (label_width(n_labels), WIDE_BYTES)
        or len(blocks) != _n_bytes(starts)
        or not least >= 0
    ):
        raise Corrupt(
            f"index/{path.name} has lists of other types or of another shape than {shape}",
            file=path.name,
        )
    if n_labels and not 0 <= order.min() <= order.max() < n_labels:
        raise Corrupt(
            f"index/{path.name} has a label order with labels that the model does not have",
            file=path.name,
        )
    return PackedLists(blocks, starts, width, n_labels, least), order


def packed_pieces(W: CSR, plan: PackingPlan, budget: int) -> Iterator[tuple[int, Any]]:
    """Yield the blocks of ranges of features, in order: (offset in bytes, bytes)."""
    cursors = np.array(W.indptr[:-1])
    ends = np.concatenate([[0], np.cumsum(plan.counts)])
    for first, stop in row_ranges(ends, budget // ENTRY_BYTES):
        n = int(ends[stop] - ends[first])
        rows, weights = np.empty(n, np.int32), np.empty(n, np.float32)
        places = ends[first:stop] - ends[first]
        take_columns(W, cursors, first, stop, places, rows, weights)
        begin = int(plan.starts[first]) * UNIT_BYTES
        out = np.zeros(int(plan.starts[stop]) * UNIT_BYTES - begin, np.uint8)
        pack(
            plan.starts,
            first,
            stop,
            places,
            rows,
            weights,
            plan.least,
            plan.dense_from,
            plan.width,
            W.n_rows,
            out,
        )
        del rows, weights
        yield begin, out
        del out  # the memory of two pieces would be needed for a moment


def row_ranges(indptr: Int64, max_entries: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges (first, stop) of rows with at most `max_entries` entries each.

    A range of a single row can have more.
    """
    first, n = 0, len(indptr) - 1
    while first < n:
        stop = int(np.searchsorted(indptr, indptr[first] + max_entries, side="right")) - 1
        stop = min(max(stop, first + 1), n)
        yield first, stop
        first = stop


def _narrow_sizes(kept_counts: Int64, n_labels: int, dense_from: int) -> Int64:
    """Return the number of UNITs of each feature's block."""
    lengths, inverse = np.unique(kept_counts, return_inverse=True)
    sizes = np.array(
        [narrow_units(int(n), n_labels, int(n) >= dense_from) for n in lengths], np.int64
    )
    return sizes[inverse] if len(kept_counts) else np.empty(0, np.int64)


def _magnitude_cutoff(data: Float32, most: float) -> float:
    """Return the magnitude from which negative weights are kept, a power of 2**(1/16).

    At most `most` weights are kept, including all positive ones.
    """
    above, below = exponent_histograms(data)
    larger = np.cumsum(below[::-1])[::-1]  # negative weights of at least each magnitude
    fits = np.flatnonzero(larger <= max(most - above.sum(), 0))
    bin_ = int(fits[0]) if len(fits) else len(below) - 1
    return float(np.array([bin_ << 19], np.uint32).view(np.float32)[0])


def _dense_threshold(kept_counts: Int64, n_labels: int, budget: int) -> int:
    """Return the number of weights from which a feature is dense.

    The longest features are dense, as many as fit into `budget` bytes.
    """
    lengths, n_features = np.unique(kept_counts, return_counts=True)
    sizes = (
        np.array([narrow_units(int(n), n_labels, dense) for n in lengths], np.int64)
        for dense in (True, False)
    )
    # additional bytes if this length and all longer ones are dense
    extra_bytes = np.cumsum((np.subtract(*sizes) * UNIT_BYTES * n_features)[::-1])[::-1]
    fits = (lengths * DENSE_LABEL_DIVISOR >= n_labels) & (lengths > 0) & (extra_bytes <= budget)
    return int(lengths[np.argmax(fits)]) if fits.any() else n_labels + 1
