"""Selection of held-out rows.

A hash of the id decides, so the same document is on the same side in every build.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from xcray.data.readers.blocks import Source
from xcray.data.readers.options import ReadOptions
from xcray.errors import DataError, ParameterError


class HashSplit:
    """Split that holds out about `fraction` of the ids.

    The choice depends only on the id and the seed. fraction: 0 <= fraction < 1, else
    ParameterError.
    """

    def __init__(self, fraction: float, seed: int = 0) -> None:
        if (
            isinstance(fraction, bool)
            or not isinstance(fraction, int | float)
            or not 0 <= fraction < 1
        ):
            raise ParameterError(
                f"test_fraction is {fraction!r}; it must be at least 0 and below 1"
            )
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ParameterError(f"seed is {seed!r}; it must be a whole number")
        self.fraction = fraction
        self.seed = seed
        self._limit = int(fraction * 2**64)

    def is_held_out(self, id: str) -> bool:
        """Whether the document with this id belongs to the test part."""
        if not self._limit:
            return False
        digest = hashlib.blake2b(
            f"{self.seed}|{id}".encode("utf-8", "backslashreplace"), digest_size=8
        ).digest()
        return int.from_bytes(digest, "big") < self._limit

    def mask(self, start: int, stop: int) -> Any:
        """Return `is_held_out` for the row numbers start..stop-1: (stop - start,) bool."""
        return np.fromiter(
            (self.is_held_out(str(row)) for row in range(start, stop)), bool, stop - start
        )


class RowSplit:
    """Split that holds out the rows listed in a file.

    The file has one row number per line, from 1, as in split files of the XC repository.
    """

    def __init__(self, path: Path | str) -> None:
        self.source = Source(path, ReadOptions())
        self.lines: dict[int, int] = {}
        for block in self.source.blocks():
            for i, line in enumerate(block.data.split(b"\n")):
                self._add_row(line.strip(), block.line + i)
        if not self.lines:
            raise self.source.error("EMPTY_FILE", "no row numbers; the file is empty")
        self._rows = np.array(sorted(self.lines), np.int64)

    def _add_row(self, word: bytes, line: int) -> None:
        """Parse one row number."""
        if not word:
            return
        if not word.isdigit() or len(word) > 18 or int(word) < 1:
            raise self._error(
                "is not a row number from 1",
                line,
                word,
                "write one number per line; cut -f1 selects one column",
            )
        if int(word) in self.lines:
            raise self._error("is given twice", line, word, None)
        self.lines[int(word)] = line

    def _error(self, problem: str, line: int, word: bytes, hint: str | None) -> DataError:
        """Return a SPLIT_RANGE error."""
        shown = word[:60].decode("utf-8", "backslashreplace")
        return self.source.error(
            "SPLIT_RANGE", f"row '{shown}' {problem}", line=line, value=shown, hint=hint
        )

    def mask(self, start: int, stop: int) -> Any:
        """Return which row numbers start..stop-1 (from 0) are listed: (stop - start,) bool."""
        lo, hi = np.searchsorted(self._rows, (start + 1, stop + 1))
        out = np.zeros(stop - start, bool)
        out[self._rows[lo:hi] - 1 - start] = True
        return out

    def check(self, n_rows: int) -> None:
        """Raise SPLIT_RANGE if a listed row is beyond the last row."""
        last = int(self._rows[-1])
        if last > n_rows:
            raise self._error(
                f"is beyond the last row, {n_rows}", self.lines[last], str(last).encode(), None
            )
