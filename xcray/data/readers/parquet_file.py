"""Opening a Parquet file that is not trusted.

The magic bytes at both ends and the length of the footer are checked before Arrow opens the file,
with limits for the strings and lists of the footer. The unpacked sizes are compared with limits
before a page is read. Pages with checksums are verified. Extension types are read as their storage
type. The Arrow schema stored in the file's metadata loads no code. Arrow's errors become
DataErrors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xcray.data.readers.blocks import FREE_GROWTH_BYTES, HEAD_BYTES
from xcray.data.readers.error_codes import default_fix
from xcray.data.readers.format_guess import FIXES, LOOKS, guess_format
from xcray.data.readers.options import ReadOptions
from xcray.errors import DataError, excerpt, missing_file

BUFFER_BYTES: Final = 1 << 20  # bytes read ahead of a column
MAX_FOOTER_BYTES: Final = 16 << 20  # a footer is read into memory
MAX_NODES: Final = 20_000  # entries of one list in the footer: columns, row groups
MAX_STRING_BYTES: Final = 16 << 20  # bytes of one string in the footer
MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"
# marks in Arrow's message -> code, problem; the first match counts
ARROW_ERRORS: Final = (
    (("decrypt", "encrypt"), "PARQUET_ENCRYPTED", "it is encrypted"),
    (("codec", "compression"), "PARQUET_CODEC", "its compression is not supported"),
    (
        ("deeply nested", "exceeded size limit", "MaxMessageSize"),
        "PARQUET_LIMIT",
        "its schema or footer exceeds the limits",
    ),
)


def open_parquet(path: Path | str, strings: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a file after checking that its footer is within the limits.

    Memory is bounded by the bytes in the file. strings: columns to read as dictionaries, so
    that a repeated string is held once. Raises NotFound; DataError: PARQUET_INVALID,
    PARQUET_TRUNCATED, PARQUET_ENCRYPTED, PARQUET_CORRUPT, PARQUET_CODEC, PARQUET_LIMIT,
    FORMAT_MISMATCH. Wrap later reads in `translate_arrow_errors`.
    """
    path = Path(path)
    if not path.is_file():
        raise missing_file(path)
    _check_ends(path)
    with translate_arrow_errors(path.name):
        file = _open_file(path, [])
        if not strings:
            return file
        with file:
            leaves = [file.metadata.schema.column(i) for i in range(file.metadata.num_columns)]
            dictionaries = [
                leaf.path
                for leaf in leaves
                if leaf.physical_type == "BYTE_ARRAY" and leaf.path.split(".")[0] in strings
            ]
        return _open_file(path, dictionaries)


@contextmanager
def translate_arrow_errors(name: str) -> Iterator[None]:
    """Raise errors of Arrow as DataErrors with the first line of their message, without paths."""
    try:
        yield
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        pa.ArrowTypeError,
        pa.ArrowIndexError,
        OSError,
        UnicodeDecodeError,
    ) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        shown = _without_paths(message)
        for marks, code, sentence in ARROW_ERRORS:
            if any(mark.lower() in message.lower() for mark in marks):
                raise _error(name, code, sentence, value=shown) from None
        raise _error(name, "PARQUET_CORRUPT", f"can't be read: {excerpt(shown)}") from None


def check_slice(batch: pa.RecordBatch) -> None:
    """Check the values of a slice.

    Arrow decodes a page without comparing its codes with the size of their dictionary. Raises
    pa.ArrowException, which `translate_arrow_errors` translates.
    """
    batch.validate(full=False)
    for column in batch.columns:
        values = (
            column.flatten()
            if pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
            else column
        )
        if isinstance(values, pa.DictionaryArray) and len(values):
            ends = pc.min_max(values.indices).as_py()
            if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < len(
                values.dictionary
            ):
                raise pa.ArrowIndexError("a value is outside its dictionary")


def unpacked_bytes(file: pq.ParquetFile) -> tuple[int, float]:
    """Return the uncompressed bytes of all row groups, and the most bytes per row of one.

    Figures of columns are not read: Arrow aborts the process when those of an invalid footer are
    read one by one.
    """
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    per_row = [group.total_byte_size / max(1, group.num_rows) for group in groups]
    return sum(group.total_byte_size for group in groups), max([1.0, *per_row])


def check_unpacked_size(n_bytes: int, name: str, options: ReadOptions, size: int) -> None:
    """Raise DataError DECOMPRESSED_LIMIT if a file of `size` bytes unpacks to too many bytes."""
    limit = min(options.max_decompressed, max(FREE_GROWTH_BYTES, size * options.max_expansion))
    if n_bytes > limit:
        problem = f"{size} bytes grow to more than {limit} when unpacked"
        raise _error(name, "DECOMPRESSED_LIMIT", problem)


def _open_file(path: Path, dictionaries: Sequence[str]) -> pq.ParquetFile:
    """Open a file with Arrow; reads of it go through `translate_arrow_errors`."""
    # without this, Arrow reads whole column chunks, which can be as large as the file
    return pq.ParquetFile(
        path,
        pre_buffer=False,
        buffer_size=BUFFER_BYTES,
        page_checksum_verification=True,
        thrift_string_size_limit=MAX_STRING_BYTES,
        thrift_container_size_limit=MAX_NODES,
        read_dictionary=list(dictionaries),
    )


def _check_ends(path: Path) -> None:
    """Check the magic bytes at both ends and the size of the footer."""
    size = path.stat().st_size
    with open(path, "rb") as handle:
        first = handle.read(HEAD_BYTES)
        head = first[:4]
        handle.seek(max(0, size - 8))
        tail = handle.read(8)
    if size < 12:
        problem = f"{size} bytes are too few for a Parquet file"
        raise _error(path.name, "PARQUET_INVALID", problem)
    if head not in (MAGIC, ENCRYPTED_MAGIC):
        guess = guess_format(first) or ""
        problem = f"is not a Parquet file: it {LOOKS.get(guess, 'does not begin with PAR1')}"
        raise _error(path.name, "FORMAT_MISMATCH", problem, hint=FIXES.get(guess))
    if head == ENCRYPTED_MAGIC or tail.endswith(ENCRYPTED_MAGIC):
        raise _error(path.name, "PARQUET_ENCRYPTED", "it is encrypted")
    if not tail.endswith(MAGIC):
        raise _error(path.name, "PARQUET_TRUNCATED", "the file ends before its footer")
    footer = struct.unpack("<I", tail[:4])[0]
    if footer > size - 12:
        problem = f"the footer claims {footer} bytes, the file has {size}"
        raise _error(path.name, "PARQUET_INVALID", problem)
    if footer > MAX_FOOTER_BYTES:
        problem = f"the footer has {footer} bytes, the limit is {MAX_FOOTER_BYTES}"
        raise _error(path.name, "PARQUET_LIMIT", problem)


def _error(file: str, code: str, problem: str, **details: Any) -> DataError:
    """Return a DataError about a file. Its hint defaults to the fix of its code."""
    details["hint"] = details.get("hint") or default_fix(code)
    return DataError(code, problem, file=file, **details)


def _without_paths(words: str) -> str:
    """Return a message without words that look like a path."""
    return " ".join("..." if "/" in word else word for word in words.split())
