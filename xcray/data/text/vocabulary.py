"""Lookup table of a text pipeline's terms, searched in its memory-mapped file.

All processes share one copy, and opening builds nothing. lookup.arrow, next to the terms, has one
column `slot` of uint64 (see `kernels.vocabulary`) and the hash seed in the schema's metadata.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from xcray.arrays import Int64, frozen
from xcray.errors import Corrupt, Refused
from xcray.kernels.vocabulary import Vocabulary, Words, fill, first_unreachable
from xcray.storage.arrow import read_column, read_table, write_table

LOOKUP_FILE = "lookup.arrow"
MAX_SEEDS = 16  # the first one without long collision chains is used


def string_bytes(terms: pa.LargeStringArray) -> Words:
    """Return the bytes of strings as views of Arrow's memory."""
    _, offsets, letters = terms.buffers()
    starts: Int64 = np.zeros(1, np.int64)
    if len(terms):
        starts = np.frombuffer(offsets, np.int64)[terms.offset : terms.offset + len(terms) + 1]
    return Words(
        frozen(starts, np.int64), frozen(np.frombuffer(letters or b"", np.uint8), np.uint8)
    )


def build_vocabulary(terms: pa.LargeStringArray) -> Vocabulary:
    """Build the lookup table of terms in one pass.

    Raises Refused if the terms collide under every seed, which only happens on purpose.
    """
    words = string_bytes(terms)
    for seed in range(MAX_SEEDS):
        # half full: 1.5 probes on average for a term, 2.5 for an unknown term
        slots = np.zeros(2 * len(terms) + 1, np.uint64)
        if fill(words, seed, slots):
            return Vocabulary(words, frozen(slots, np.uint64), seed)
    raise Refused(
        f"{len(terms)} terms collide under {MAX_SEEDS} different hashes on purpose; leave some out"
    )


def write_lookup(directory: Path, vocabulary: Vocabulary) -> None:
    """Write the lookup table next to the terms, durably."""
    table = pa.table({"slot": pa.array(vocabulary.slots)})
    write_table(
        directory / LOOKUP_FILE, table.replace_schema_metadata({"seed": str(vocabulary.seed)})
    )


def read_lookup(directory: Path, terms: pa.LargeStringArray, verify: bool) -> Vocabulary:
    """Map the lookup table of these terms.

    verify: look up every term. Raises NotFound if it is missing, Corrupt if it is not a table of
    `len(terms)` terms, or does not find all of them.
    """
    table = read_table(directory / LOOKUP_FILE)
    try:
        seed = int(table.schema.metadata[b"seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"{LOOKUP_FILE} in {directory.name} is not a table of terms: {error!r}",
            file=LOOKUP_FILE,
        ) from None
    slots = read_column(table, "slot", pa.uint64(), LOOKUP_FILE, 2 * len(terms) + 1)
    out = Vocabulary(string_bytes(terms), frozen(slots.to_numpy(), np.uint64), seed)
    if verify and (missing := first_unreachable(out)) >= 0:
        raise Corrupt(
            f"{LOOKUP_FILE} in {directory.name} does not find term {missing}; "
            "the file was changed after it was written",
            file=LOOKUP_FILE,
        )
    return out
