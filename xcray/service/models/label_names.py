"""Names of labels by number, for replies."""

from __future__ import annotations

from typing import Final

from xcray.arrays import Int32
from xcray.data.text.vocabulary import string_bytes
from xcray.storage.names import Names

# up to this many names are read one by one (0.3 us each); for more, Arrow's take is faster (12 us
# plus 0.05 us each)
MAX_SINGLE_LOOKUPS: Final = 40


class NameTable:
    """The label names of a model, read from Arrow's memory."""

    def __init__(self, names: Names) -> None:
        """Wrap names, none of which is missing."""
        self._names = names
        starts, letters = string_bytes(names.array)
        self._starts, self._letters = starts.data, letters.data

    def utf8(self, labels: Int32) -> list[memoryview]:
        """Return the names of label numbers of any shape, flat, as UTF-8; -1 has no name."""
        starts, letters = self._starts, self._letters
        return [
            letters[starts[j] : starts[j + 1]] if j >= 0 else letters[:0]
            for j in labels.ravel().tolist()
        ]

    def texts(self, labels: Int32) -> list[str]:
        """Return the names of label numbers of any shape, flat; that of -1 is empty."""
        if labels.size > MAX_SINGLE_LOOKUPS and labels.min() >= 0:
            return list(self._names.take(labels.ravel()).to_pylist())
        return [str(name, "utf-8") for name in self.utf8(labels)]

    def rows(self, labels: Int32) -> list[list[str]]:
        """Return the names of label numbers (n, k) as one list per row."""
        n_rows, k = labels.shape
        names = self.texts(labels)
        return [names[i * k : (i + 1) * k] for i in range(n_rows)]
