"""Packed posting lists of a model: made of its weights within a budget of memory, written beside them, mapped.

Wide lists (more than 2**16 labels; 2 or 3 bytes a weight) have no weights of their own: exact scores are taken from the
weights by label. Both
together are at most SIZE times as large as the latter alone, by leaving out the negative weights nearest to zero. Narrow lists
(2 bytes) hold the
weights too, 4 bytes each, and a byte for every label of the longest lists: few labels have long rows, from which a hundred exact
scores would take longer than from the lists.
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
from xcray.kernels.search.lists import NARROW, UNIT, Lists, narrow_units
from xcray.kernels.search.packing import exponents, kept_counts, pack, wide_bytes
from xcray.kernels.search.validate_lists import first_bad, is_order
from xcray.storage.arrow import BlobWriter, read_table

LAYOUT = "1"  # of the blocks: to be changed with their form, so that lists of another form are made anew and not misread
SIZE = 1.29  # bytes of rows and wide lists, over bytes of the rows
DENSE_ROOM = 0.06  # bytes that dense features may add to narrow lists, over bytes of the rows
ENTRY = 8  # bytes of a weight by label: int32 and float32
BUDGET = 64 << 20  # bytes of entries that are in memory at once; larger pieces leave the caches
DENSE_SHARE = 24  # a feature may be dense when at least one label in so many has it
LONGEST = (1 << 32) * UNIT  # bytes that starts can reach


class Plan(NamedTuple):
    """What goes where: (D + 1,) uint32 starts, (D,) int64 entries of each feature, and the choices that made them."""

    starts: Any
    counts: Int64
    least: float
    dense_from: int
    width: int


def label_width(n_labels: int) -> int:
    """Bytes of a label."""
    return NARROW if n_labels <= 1 << 16 else 3 if n_labels <= 1 << 24 else 4


def plan(W: CSR) -> Plan:
    """Choose what is left out and what is dense, so that the lists stay within their size. W: (K, D), sound."""
    n_labels, width = W.n_rows, label_width(W.n_rows)
    indices, data, least, dense_from = W.indices[: W.nnz], W.data[: W.nnz], 0.0, n_labels + 1
    counts, kept = kept_counts(indices, data, least, W.n_cols)
    if width == NARROW:
        dense_from = _dense_from(kept, n_labels, int(DENSE_ROOM * ENTRY * W.nnz))
        units = _narrow_units(kept, n_labels, dense_from)
    else:
        room = int((SIZE - 1.0) * ENTRY * W.nnz) - 4 * W.n_cols
        sizes = wide_bytes(indices, W.indptr, data, least, width, kept)
        if int(sizes.sum()) > room:
            least = _least(data, room * W.nnz / max(int(sizes.sum()), 1))
            counts, kept = kept_counts(indices, data, least, W.n_cols)
            sizes = wide_bytes(indices, W.indptr, data, least, width, kept)
        units = (sizes + UNIT - 1) // UNIT
    ends = np.concatenate([[0], np.cumsum(units)])
    if int(ends[-1]) * UNIT >= LONGEST:
        raise ParameterError(
            f"the index would have {int(ends[-1]) * UNIT:,} bytes; more than {LONGEST:,} can't be addressed: prune"
        )
    return Plan(ends.astype(np.uint32), counts, least, dense_from, width)


def build(W: CSR, budget: int = BUDGET, tick: Callable[[], None] = lambda: None) -> Lists:
    """The lists of W (K, D) in memory."""
    made = plan(W)
    blocks = np.zeros(int(made.starts[-1]) * UNIT + 8, np.uint8)
    for place, piece in pieces(W, made, budget):
        blocks[place : place + len(piece)] = piece
        tick()
    blocks.flags.writeable = made.starts.flags.writeable = False
    return Lists(blocks, made.starts, made.width, W.n_rows, made.least)


def order_of(b: Float32) -> Int32:
    """Labels by falling bias, equal ones by number: (K,) int32."""
    return frozen(np.argsort(-b.astype(np.float64), kind="stable"), np.int32)


def write(
    path: Path, W: CSR, b: Float32, budget: int = BUDGET, tick: Callable[[], None] = lambda: None
) -> None:
    """Write the lists of W, a sound (K, D) matrix that may be mapped from disk, and the order of its biases; the same bytes for any
    budget.

    budget: bytes of entries in memory at once, beside 8 K + 24 D; a feature with more is taken whole. tick: called after each
    piece.
    """
    made = plan(W)
    head = {
        "layout": LAYOUT,
        "width": str(made.width),
        "n_labels": str(W.n_rows),
        "least": float(made.least).hex(),
    }
    columns = {"starts": pa.array(made.starts), "order": pa.array(order_of(b))}
    with BlobWriter(path, int(made.starts[-1]) * UNIT + 8, columns, head) as out:
        for place, piece in pieces(W, made, budget):
            out.write(place, piece)
            tick()


def check(lists: Lists, order: Int32, name: str) -> None:
    """Raise Corrupt, naming the file, unless searches can trust the lists: they read without bounds checks. One pass."""
    bad = first_bad(lists)
    if bad >= 0:
        raise Corrupt(
            f"{name}, feature {bad}: its list is not sound; train the model again or restore its file",
            file=name,
        )
    if not is_order(order):
        raise Corrupt(f"{name}: the order of labels is not one of {len(order)} labels", file=name)


def is_current(path: Path) -> bool:
    """Whether the lists of a file have the layout that this code reads. Raises NotFound, or Corrupt when it is not Arrow."""
    return (read_table(path).schema.metadata or {}).get(b"layout") == LAYOUT.encode()


def read(path: Path, shape: tuple[int, int]) -> tuple[Lists, Int32]:
    """Map the lists and the order that `write` made of a (K, D) matrix. Raises NotFound, or Corrupt for another shape."""
    table = read_table(path)
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
            f"index/{path.name} does not hold packed lists: {error!r}", file=path.name
        ) from None
    sound = (n_labels, len(starts) - 1) == shape and len(order) == n_labels
    sound = sound and (starts.dtype, order.dtype, blocks.dtype) == (np.uint32, np.int32, np.uint8)
    if (
        not sound
        or width != label_width(n_labels)
        or len(blocks) != int(starts[-1]) * UNIT + 8
        or not least >= 0
    ):
        raise Corrupt(
            f"index/{path.name} holds lists of other types or another shape than {shape}",
            file=path.name,
        )
    if n_labels and not 0 <= order.min() <= order.max() < n_labels:
        raise Corrupt(
            f"index/{path.name} orders labels that the model does not have", file=path.name
        )
    return Lists(blocks, starts, width, n_labels, least), order


def pieces(W: CSR, made: Plan, budget: int) -> Iterator[tuple[int, Any]]:
    """The blocks of ranges of features, in order: (byte where they begin, their bytes)."""
    cursors = np.array(W.indptr[:-1])
    ends = np.concatenate([[0], np.cumsum(made.counts)])
    for first, stop in ranges(ends, budget // ENTRY):
        n = int(ends[stop] - ends[first])
        rows, weights = np.empty(n, np.int32), np.empty(n, np.float32)
        places = ends[first:stop] - ends[first]
        take_columns(W, cursors, first, stop, places, rows, weights)
        begin = int(made.starts[first]) * UNIT
        out = np.zeros(int(made.starts[stop]) * UNIT - begin, np.uint8)
        pack(
            made.starts,
            first,
            stop,
            places,
            rows,
            weights,
            made.least,
            made.dense_from,
            made.width,
            W.n_rows,
            out,
        )
        yield begin, out


def ranges(indptr: Int64, most: int) -> Iterator[tuple[int, int]]:
    """Ranges (first, stop) of rows, in order, that have at most `most` entries each or are a single row."""
    first, n = 0, len(indptr) - 1
    while first < n:
        stop = int(np.searchsorted(indptr, indptr[first] + most, side="right")) - 1
        stop = min(max(stop, first + 1), n)
        yield first, stop
        first = stop


def _narrow_units(kept: Int64, n_labels: int, dense_from: int) -> Int64:
    """UNITs of each feature's block."""
    lengths, inverse = np.unique(kept, return_inverse=True)
    sizes = np.array(
        [narrow_units(int(n), n_labels, int(n) >= dense_from) for n in lengths], np.int64
    )
    return sizes[inverse] if len(kept) else np.empty(0, np.int64)


def _least(data: Float32, most: float) -> float:
    """The size from which negative weights are kept, so that at most `most` weights are, all positive ones among them; a power of
    2**(1/16)."""
    above, below = exponents(data)
    larger = np.cumsum(below[::-1])[::-1]  # negatives of at least each size
    fits = np.flatnonzero(larger <= max(most - above.sum(), 0))
    bin_ = int(fits[0]) if len(fits) else len(below) - 1
    return float(np.array([bin_ << 19], np.uint32).view(np.float32)[0])


def _dense_from(kept: Int64, n_labels: int, room: int) -> int:
    """How many weights make a feature dense: the longest ones, while there is room."""
    lengths, numbers = np.unique(kept, return_counts=True)
    sizes = (
        np.array([narrow_units(int(n), n_labels, dense) for n in lengths], np.int64)
        for dense in (True, False)
    )
    more = np.cumsum((np.subtract(*sizes) * UNIT * numbers)[::-1])[
        ::-1
    ]  # bytes more when this length and all longer ones are dense
    fits = (lengths * DENSE_SHARE >= n_labels) & (lengths > 0) & (more <= room)
    return int(lengths[np.argmax(fits)]) if fits.any() else n_labels + 1
