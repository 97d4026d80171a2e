"""Arrays in the format of `numpy.save`, read from a stream a part at a time."""

from __future__ import annotations

import math
import zipfile
import zlib
from tokenize import TokenError
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy_format

# What NumPy raises for a header that is not one.
HEADER_ERRORS: Final = (
    *(ValueError, TypeError, IndexError, SyntaxError, TokenError),
    *(MemoryError, RecursionError, OverflowError),
)
STREAM_ERRORS: Final = (EOFError, OSError, zlib.error, zipfile.BadZipFile)


class NpyStream:
    """An array of numbers or texts in a stream, of which elements are read one after the other.

    shape, dtype: as in NumPy. is_fortran: whether its elements are in Fortran order. The memory is
    that of the elements that are read, whatever the header states. Raises ValueError for another
    format, for objects, and for a stream that is damaged or of another size than its header states.
    """

    def __init__(self, stream: IO[bytes], n_bytes: int) -> None:
        """Read the header. n_bytes: size of the stream."""
        self._stream = stream
        try:
            is_first = npy_format.read_magic(stream) == (1, 0)
            read_header = (
                npy_format.read_array_header_1_0 if is_first else npy_format.read_array_header_2_0
            )
            self.shape, self.is_fortran, self.dtype = read_header(stream)
        except (*HEADER_ERRORS, *STREAM_ERRORS) as error:
            raise ValueError(f"not an array of NumPy ({str(error)[:80]})") from None
        if self.dtype.kind not in "fiubUS":
            raise ValueError(f"an array of {self.dtype}, not of numbers")
        if min(self.shape, default=0) < 0:
            raise ValueError(f"an array of the shape {self.shape}")
        if stream.tell() + math.prod(self.shape) * self.dtype.itemsize != n_bytes:
            raise ValueError(f"{n_bytes} bytes, which is not the size of {self.shape} elements")

    def read(self, count: int) -> Any:
        """Return the next `count` elements, all of which must be there: (count,)."""
        n_bytes = count * self.dtype.itemsize
        try:
            data = self._stream.read(n_bytes)
        except STREAM_ERRORS as error:
            raise ValueError(f"damaged ({str(error)[:80]})") from None
        if len(data) < n_bytes:
            raise ValueError("the file ends inside an array")
        return np.frombuffer(data, self.dtype)
