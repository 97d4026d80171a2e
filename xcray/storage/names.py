"""Names of labels or features, by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

import pyarrow as pa

# up to this many names are read one by one (0.3 us each); for more, Arrow's take is faster (12 us
# plus 0.05 us each)
MAX_SINGLE_LOOKUPS: Final = 40


class Names(Sequence[str]):
    """Names in the order of their numbers: `names[i]` is a string.

    array: the names as an Arrow array, which can be mapped from a file.
    """

    def __init__(self, array: pa.LargeStringArray) -> None:
        self.array = array
        _, starts, letters = array.buffers()
        self._starts = memoryview(starts or bytes(8)).cast("q")[array.offset :]
        self._letters = memoryview(letters or b"")

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> Names: ...

    def __getitem__(self, at: int | slice) -> str | Names:
        """Return one name, or those of a range. Raises IndexError."""
        return Names(self.array[at]) if isinstance(at, slice) else str(self.array[int(at)].as_py())

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self.to_pylist())

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        """Return the Arrow array, so that pyarrow makes no Python strings."""
        return self.array if type is None else self.array.cast(type)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has the same names in the same order."""
        if isinstance(other, Names):
            return bool(self.array.equals(other.array))
        return isinstance(other, list | tuple) and self.to_pylist() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the number of names and the first ones."""
        return f"Names({len(self):,}: {', '.join(self[:5].to_pylist())}{', ...' * (len(self) > 5)})"

    def __reduce__(self) -> tuple[type[Names], tuple[pa.LargeStringArray]]:
        """Pickle the array only."""
        return Names, (self.array,)

    def take(self, numbers: Any) -> pa.LargeStringArray:
        """Return the names of these numbers, (n,) of integers, as an Arrow array."""
        return self.array.take(pa.array(numbers))

    def utf8(self, numbers: Any) -> list[memoryview]:
        """Return the names of an array of numbers, flat, as UTF-8; -1 has no name.

        No name may be missing.
        """
        starts, letters = self._starts, self._letters
        return [
            letters[starts[j] : starts[j + 1]] if j >= 0 else letters[:0]
            for j in numbers.ravel().tolist()
        ]

    def texts(self, numbers: Any) -> list[str]:
        """Return the same as strings."""
        if numbers.size > MAX_SINGLE_LOOKUPS and numbers.min() >= 0:
            return list(self.take(numbers.ravel()).to_pylist())
        return [str(name, "utf-8") for name in self.utf8(numbers)]

    def rows(self, numbers: Any) -> list[list[str]]:
        """Return the names of numbers (n, k) as one list per row."""
        names, (n_rows, k) = self.texts(numbers), numbers.shape
        return [names[i * k : (i + 1) * k] for i in range(n_rows)]

    def to_pylist(self) -> list[str]:
        """Return all names as a list."""
        return list(self.array.to_pylist())
