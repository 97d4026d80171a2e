"""A Parquet file opened with care: what it is no reader has to believe, what Arrow says of it in our words.

Looked at before Arrow is: the magic at both ends, and the length of the footer. The footer's claims (columns, row groups, sizes
when unpacked) are compared with limits before a page is read. Pages with checksums are verified. Extension types are read as what
they are stored as, and the schema that Arrow keeps beside Parquet's own loads nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xcray.data.readers.blocks import FREE, Source
from xcray.data.readers.error_codes import mend
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet_footer import Footer, read_footer
from xcray.errors import DataError, NotFound, excerpt

BUFFER: Final = 1 << 20  # bytes read ahead of a column
MAX_FOOTER: Final = 16 << 20  # bytes; a footer is read whole
MAX_NODES: Final = 20_000  # columns, row groups: entries of one list in the footer
MAX_STRING: Final = 16 << 20  # bytes of one string in the footer
MAGIC, SEALED = b"PAR1", b"PARE"
KINDS: Final = (  # words of Arrow -> code, sentence, mend; the first that fits
    (("decrypt", "encrypt"), "PARQUET_ENCRYPTED", "it is encrypted", "write it without encryption"),
    (
        ("codec", "compression"),
        "PARQUET_CODEC",
        "its compression is not known here",
        "write it with zstd, snappy or none",
    ),
    (
        ("deeply nested", "exceeded size limit", "MaxMessageSize"),
        "PARQUET_LIMIT",
        "its schema or footer is larger than is read",
        "write the columns that are needed alone, in row groups of some ten thousand rows",
    ),
)


def open_parquet(
    path: Path | str, options: ReadOptions | None = None, strings: Sequence[str] = ()
) -> pq.ParquetFile:
    """The file, its footer read and found within the limits; memory follows the bytes that are there.

    strings: columns that shall be read as dictionaries, where a string that is there a million times is held once.
    Raises NotFound; DataError: PARQUET_INVALID, PARQUET_TRUNCATED, PARQUET_ENCRYPTED, PARQUET_CORRUPT, PARQUET_CODEC,
    PARQUET_LIMIT, FORMAT_MISMATCH; what Arrow finds later, `told` says.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"there is no file {path.name}")
    if options is not None:
        Source(path, options).check_declared()
    _check_ends(path)
    footer_of(path)
    with told(path.name):
        file = _opened(path, [])
        if not strings:
            return file
        with file:
            leaves = [file.metadata.schema.column(i) for i in range(file.metadata.num_columns)]
            kept = [
                leaf.path
                for leaf in leaves
                if leaf.physical_type == "BYTE_ARRAY" and leaf.path.split(".")[0] in strings
            ]
        return _opened(path, kept)


@contextmanager
def told(name: str) -> Iterator[None]:
    """What Arrow says of a file's bytes as a DataError: the first line of its words, without paths."""
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
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        for marks, code, sentence, hint in KINDS:
            if any(mark.lower() in words.lower() for mark in marks):
                raise DataError(code, sentence, file=name, value=_bare(words), hint=hint) from None
        raise DataError(
            "PARQUET_CORRUPT",
            f"can't be read: {excerpt(_bare(words))}",
            file=name,
            hint=mend("PARQUET_INVALID") or "",
        ) from None


def check_slice(batch: pa.RecordBatch) -> None:
    """See that a slice holds what it says: Arrow decodes a page without comparing its codes with the dictionary they point into.

    Raises pa.ArrowException, which `told` puts into words.
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
                raise pa.ArrowIndexError("a value lies beyond its dictionary")


def footer_of(path: Path) -> Footer:
    """What the footer claims, within the limits. Raises DataError PARQUET_CORRUPT, PARQUET_ENCRYPTED, PARQUET_LIMIT."""
    with open(path, "rb") as handle:
        handle.seek(-8, os.SEEK_END)
        size = struct.unpack("<I", handle.read(4))[0]
        handle.seek(-8 - size, os.SEEK_END)
        data = handle.read(size)
    try:
        footer = read_footer(data, MAX_NODES)
    except ValueError as error:
        raise DataError(
            "PARQUET_CORRUPT", str(error), file=path.name, hint=mend("PARQUET_CORRUPT")
        ) from None
    except OverflowError as error:
        raise DataError(
            "PARQUET_LIMIT", str(error), file=path.name, hint=mend("PARQUET_LIMIT")
        ) from None
    if footer.encrypted:
        raise DataError(
            "PARQUET_ENCRYPTED", "it is encrypted", file=path.name, hint=mend("PARQUET_ENCRYPTED")
        )
    return footer


def check_grown(grown: int, name: str, options: ReadOptions, size: int) -> None:
    """Refuse unpacked bytes beyond the limits of a file of `size` bytes. Raises DataError DECOMPRESSED_LIMIT."""
    limit = min(options.max_decompressed, max(FREE, size * options.max_expansion))
    if grown > limit:
        problem = f"{size} bytes grow to more than {limit} when unpacked"
        hint = "write it without dictionaries and compression, or raise max_decompressed and max_expansion"
        raise DataError("DECOMPRESSED_LIMIT", problem, file=name, hint=hint)


def _opened(path: Path, dictionaries: Sequence[str]) -> pq.ParquetFile:
    """The file as Arrow opens it; its reading goes through `told`."""
    return pq.ParquetFile(
        path,
        pre_buffer=False,  # else whole column chunks are read ahead: they may be as large as the file
        buffer_size=BUFFER,
        page_checksum_verification=True,
        thrift_string_size_limit=MAX_STRING,
        thrift_container_size_limit=MAX_NODES,
        read_dictionary=list(dictionaries),
    )


def _check_ends(path: Path) -> None:
    """The magic at both ends, and a footer that fits in between and in the limits."""

    def error(code: str, problem: str, hint: str) -> DataError:
        return DataError(code, problem, file=path.name, hint=hint)

    size = path.stat().st_size
    with open(path, "rb") as handle:
        head = handle.read(4)
        handle.seek(max(0, size - 8))
        tail = handle.read(8)
    if head not in (MAGIC, SEALED):
        if size < 12:
            raise error(
                "PARQUET_INVALID",
                f"{size} bytes are no Parquet file",
                mend("PARQUET_INVALID") or "",
            )
        raise error(
            "FORMAT_MISMATCH",
            "is no Parquet file: it does not begin with PAR1",
            "name the format that it has",
        )
    if head == SEALED or tail.endswith(SEALED):
        raise error("PARQUET_ENCRYPTED", "it is encrypted", "write it without encryption")
    if size < 12:
        raise error(
            "PARQUET_INVALID", f"{size} bytes are no Parquet file", mend("PARQUET_INVALID") or ""
        )
    if not tail.endswith(MAGIC):
        raise error(
            "PARQUET_TRUNCATED", "the file ends before its footer", mend("PARQUET_INVALID") or ""
        )
    footer = struct.unpack("<I", tail[:4])[0]
    if footer > size - 12:
        raise error(
            "PARQUET_INVALID",
            f"the footer claims {footer} bytes, the file has {size}",
            mend("PARQUET_INVALID") or "",
        )
    if footer > MAX_FOOTER:
        raise error(
            "PARQUET_LIMIT", f"the footer has {footer} bytes, {MAX_FOOTER} are read", KINDS[-1][3]
        )


def _bare(words: str) -> str:
    """Words without what looks like a path."""
    return " ".join("..." if "/" in word else word for word in words.split())
