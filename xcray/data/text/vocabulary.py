"""The terms of a text pipeline as a table that is searched in its file: one copy for all processes, nothing to build on opening.

lookup.arrow, beside the terms: one column `slot` of uint64 (see `kernels.vocabulary`), the seed in the schema's metadata.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from xcray.arrays import Int64, frozen
from xcray.errors import Corrupt, Refused
from xcray.kernels.vocabulary import Vocabulary, Words, fill, first_lost
from xcray.storage.arrow import read_table, write_table

LOOKUP = "lookup.arrow"
SEEDS = 16  # of which the first that spreads the terms is taken


def words_of(terms: pa.LargeStringArray) -> Words:
    """The bytes of strings as views of Arrow's memory."""
    _, offsets, letters = terms.buffers()
    starts: Int64 = np.zeros(1, np.int64)
    if len(terms):
        starts = np.frombuffer(offsets, np.int64)[terms.offset : terms.offset + len(terms) + 1]
    return Words(
        frozen(starts, np.int64), frozen(np.frombuffer(letters or b"", np.uint8), np.uint8)
    )


def table_of(terms: pa.LargeStringArray) -> Vocabulary:
    """The table of terms, built: a pass over them. Raises Refused when they were made to collide."""
    words = words_of(terms)
    for seed in range(SEEDS):
        slots = np.zeros(
            2 * len(terms) + 1, np.uint64
        )  # half full: a term is found after 1.5 looks, a stranger after 2.5
        if fill(words, seed, slots):
            return Vocabulary(words, frozen(slots, np.uint64), seed)
    raise Refused(
        f"{len(terms)} terms collide under {SEEDS} different hashes: they were made to; leave some out"
    )


def write_lookup(directory: Path, vocabulary: Vocabulary) -> None:
    """Write the table beside the terms, durably."""
    table = pa.table({"slot": pa.array(vocabulary.slots)})
    write_table(directory / LOOKUP, table.replace_schema_metadata({"seed": str(vocabulary.seed)}))


def read_lookup(directory: Path, terms: pa.LargeStringArray, verify: bool) -> Vocabulary | None:
    """Map the table of these terms; None in a directory of an older xcray, which has none.

    verify: look every term up. Raises Corrupt when it is not a table of so many terms, or does not lead to all of them.
    """
    if not (directory / LOOKUP).is_file():
        return None
    table = read_table(directory / LOOKUP)
    try:
        column, seed = table.column("slot"), int(table.schema.metadata[b"seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"{LOOKUP} in {directory.name} is not a table of terms: {error!r}", file=LOOKUP
        ) from None
    if (
        column.type != pa.uint64()
        or len(column) != 2 * len(terms) + 1
        or column.num_chunks != 1
        or column.null_count
    ):
        raise Corrupt(
            f"{LOOKUP} in {directory.name} is not a table of {len(terms)} terms", file=LOOKUP
        )
    out = Vocabulary(words_of(terms), frozen(column.chunk(0).to_numpy(), np.uint64), seed)
    if verify and (lost := first_lost(out)) >= 0:
        raise Corrupt(
            f"{LOOKUP} in {directory.name} does not lead to term {lost}; the file is not what was written",
            file=LOOKUP,
        )
    return out
