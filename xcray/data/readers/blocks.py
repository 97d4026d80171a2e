"""Text files as blocks of whole lines: decompressed by suffix, checked, with limits on size.

Memory holds at most one block and one unfinished line. Files that are not UTF-8 text are refused by
their first bytes: compressed without the suffix, an archive, UTF-16, or lines that end with CR
alone.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.readers.error_codes import default_fix
from xcray.data.readers.format_guess import FIXES, LOOKS, REFUSED, guess_format
from xcray.data.readers.options import MIB, ReadOptions
from xcray.errors import DataError, missing_file

BLOCK_BYTES = 4 * MIB
HEAD_BYTES = 1 << 16  # bytes checked before reading
FREE_GROWTH_BYTES = 64 * MIB  # decompressed bytes below which no expansion is suspicious
OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
COMPRESSED_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress",
}
SUFFIX_OF_KIND = {"gzip": ".gz", "xz": ".xz", "bzip2": ".bz2"}
ARCHIVE_MAGIC = {b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "rar"}
ARCHIVE_SUFFIXES = (
    ".zip",
    ".tar",
    ".tgz",
    ".7z",
    ".rar",
    ".tar.gz",
    ".tar.xz",
    ".tar.bz2",
    ".tbz2",
    ".txz",
)
BINARY_GUESSES = ("git-lfs", "parquet", "npy")
ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
FIRST_INDEX_COMMENT = re.compile(rb"^# Column indices are (zero|one)-based", re.MULTILINE)
BOM = b"\xef\xbb\xbf"


class LineBlock(NamedTuple):
    """Whole lines of a file.

    data: the bytes; line: number of the first line, from 1; offset: file offset of the first
    byte; ended: whether the last line has its newline.
    """

    data: bytes
    line: int
    offset: int
    ended: bool  # whether the last line has its newline


class Source:
    """A text file to be read once, line by line.

    path: the file; its suffix .gz, .xz or .bz2 marks compression. `name`: the base name shown
    in errors, never a path.
    text: whether the format holds documents. Then a zip file is an archive, otherwise it is
    compression.
    by_row: whether error positions are rows from 0, because the format has no lines.
    format: the format of the lines, to refuse files that look like another one.
    """

    def __init__(
        self,
        path: Path | str,
        options: ReadOptions,
        text: bool = False,
        by_row: bool = False,
        format: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.options = options
        self.text = text
        self.by_row = by_row
        self.format = format
        self.name = self.path.name
        self.too_long_code = "FIELD_TOO_LONG" if text else "LINE_TOO_LONG"

    def error(self, code: str, problem: str, **details: Any) -> DataError:
        """Return a DataError about this file. Its hint defaults to the fix of its code."""
        details["hint"] = details.get("hint") or default_fix(code)
        if self.by_row and "line" in details:
            details["row"] = details.pop("line")
        return DataError(code, problem, file=self.name, **details)

    def blocks(self) -> Iterator[LineBlock]:
        """Yield the lines of the file in blocks.

        Raises NotFound, and DataError for files that are not text or exceed the limits.
        """
        self._check_file()
        pieces: list[bytes] = []
        pending_bytes, line, offset = 0, 1, 0  # the offset counts decompressed bytes
        for chunk in self._chunks():
            cut = chunk.rfind(b"\n") + 1
            if cut:
                data = b"".join([*pieces, chunk[:cut]])
                self._check_lines(data, line)
                self._check_binary(data, line, offset)
                yield LineBlock(data, line, offset, True)
                line += data.count(b"\n")
                offset += len(data)
                pieces, pending_bytes = [], 0
            if cut < len(chunk):
                pieces.append(chunk[cut:])
                pending_bytes += len(chunk) - cut
            if pending_bytes > self.options.max_line_bytes:
                raise self._too_long_error(line)
        if pieces:
            data = b"".join(pieces)
            self._check_binary(data, line, offset)
            yield LineBlock(data, line, offset, False)

    def _chunks(self) -> Iterator[bytes]:
        """Yield decompressed bytes without byte order mark.

        Raises DataError beyond the growth limits.
        """
        opener = OPENERS.get(self.path.suffix.lower())
        total, size = 0, self.path.stat().st_size
        try:
            with (opener or open)(self.path, "rb") as handle:
                head = handle.read(HEAD_BYTES)
                self._check_head(head)
                chunk = head.removeprefix(BOM)
                while head:
                    total += len(head)
                    if opener and total > min(
                        self.options.max_decompressed,
                        max(FREE_GROWTH_BYTES, size * self.options.max_expansion),
                    ):
                        raise self._growth_error(total, size)
                    if chunk:
                        yield chunk
                    head = chunk = handle.read(BLOCK_BYTES)
        except FileNotFoundError:
            raise missing_file(self.path) from None
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise self._corrupt_error(error) from None
        except OSError as error:
            if error.errno is None:  # errors of bz2 have no errno
                raise self._corrupt_error(error) from None
            raise

    def _check_file(self) -> None:
        """Check that the file exists and is neither an archive nor of an unknown compression."""
        if not self.path.is_file():
            raise missing_file(self.path)
        lower = self.name.lower()
        if lower.endswith(ARCHIVE_SUFFIXES):
            raise self.error("ARCHIVE_REFUSED", "archives are not supported")
        if lower.endswith((".zst", ".lz4", ".z")):
            raise self.error("COMPRESSED", "this compression is not supported")

    def _check_head(self, head: bytes) -> None:
        """Raise DataError by the first bytes unless they look like UTF-8 text with line feeds."""
        if head.startswith(ZIP_MAGIC):
            raise self._zip_error(head)
        guess = guess_format(head)
        if guess in BINARY_GUESSES:
            raise self.error("FORMAT_MISMATCH", LOOKS[guess], hint=FIXES[guess])
        for magic, kind in COMPRESSED_MAGIC.items():
            if head.startswith(magic):
                raise self.error("COMPRESSED", f"looks like {kind}, but its name lacks the suffix")
        kind = next(
            (k for magic, k in ARCHIVE_MAGIC.items() if head.startswith(magic)),
            "tar" if head[257:262] == b"ustar" else "",
        )
        if kind:
            raise self.error("ARCHIVE_REFUSED", f"looks like a {kind} archive")
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) or _every_other_zero(head):
            raise self.error("ENCODING", "looks like UTF-16", line=1, column=1)
        self._check_binary(head, 1, 0)
        if b"\r" in head and b"\n" not in head:
            column = head.index(b"\r") + 1
            raise self.error("LINE_ENDING", "lines end with CR alone", line=1, column=column)
        if self.format == "svmlight":
            self._check_first_index(head)
        if guess in REFUSED.get(self.format or "", ()) and (
            self.options.header or self.format not in ("csv", "tsv")
        ):
            raise self._mismatch_error(head, str(guess))

    def _check_first_index(self, head: bytes) -> None:
        """Raise DataError if a comment of scikit-learn gives another first index."""
        found = FIRST_INDEX_COMMENT.search(head)
        if found is not None and (found[1] == b"zero") != self.options.zero_based:
            hint = "leave zero_based out" if self.options.zero_based else "use zero_based"
            raise self.error(
                "FORMAT_MISMATCH",
                f"a comment of the file says that column indices are {found[1].decode()}-based",
                line=head.count(b"\n", 0, found.start()) + 1,
                hint=f"{hint}: each feature would be its neighbour",
            )

    def _mismatch_error(self, head: bytes, guess: str) -> DataError:
        """Return the error for a text file that looks like another format."""
        lines = head.removeprefix(BOM).split(b"\n")
        number = next((i for i, line in enumerate(lines) if line.strip()), 0)
        value = lines[number].strip(b"\r")[:100].decode("utf-8", "backslashreplace")
        hint = FIXES[guess]
        if self.format == "label names":
            hint = "give a text file of one name per line, in the order of the ids"
        return self.error(
            "FORMAT_MISMATCH", LOOKS[guess], line=number + 1, column=1, value=value, hint=hint
        )

    def _zip_error(self, head: bytes) -> DataError:
        """Return the error for zip bytes.

        They are a spreadsheet, an archive, or compression, depending on the format.
        """
        if b"[Content_Types].xml" in head or b"xl/" in head:
            return self.error(
                "FORMAT_MISMATCH", "looks like a spreadsheet (zip/xlsx)", hint="export it as CSV"
            )
        if guess_format(head) == "npz":
            return self.error("FORMAT_MISMATCH", LOOKS["npz"], hint=FIXES["npz"])
        if self.text:
            return self.error("ARCHIVE_REFUSED", "looks like a zip archive")
        return self.error("COMPRESSED", "looks like zip", hint="unpack it and give one file")

    def _growth_error(self, total: int, size: int) -> DataError:
        """Return the error for a file that grows too much when decompressed."""
        grown = total - BLOCK_BYTES
        problem = f"{size} bytes grew to more than {grown} when decompressed"
        return self.error("DECOMPRESSED_LIMIT", problem)

    def _corrupt_error(self, error: Exception) -> DataError:
        """Return the error for compressed bytes that are truncated or invalid."""
        problem = f"can't be decompressed: {error or type(error).__name__}"
        return self.error("COMPRESSED_CORRUPT", problem)

    def _too_long_error(self, line: int) -> DataError:
        """Return the error for a line beyond the limit."""
        problem = f"the line is longer than {self.options.max_line_bytes} bytes"
        hint = default_fix("LINE_TOO_LONG")
        return self.error(self.too_long_code, problem, line=line, hint=hint)

    def _check_binary(self, data: bytes, line: int, offset: int) -> None:
        """Raise BINARY_DATA with its position if there is a zero byte."""
        at = data.find(b"\0")
        if at >= 0:
            line += data.count(b"\n", 0, at)
            column = at - data.rfind(b"\n", 0, at)
            problem = f"a zero byte at offset {offset + at}"
            raise self.error("BINARY_DATA", problem, line=line, column=column)

    def _check_lines(self, data: bytes, line: int) -> None:
        """Raise DataError if a line of a block is beyond the limit.

        Only blocks larger than the limit can hold such a line.
        """
        if len(data) <= self.options.max_line_bytes:
            return
        for i, text in enumerate(data.split(b"\n")):
            if len(text) > self.options.max_line_bytes:
                raise self._too_long_error(line + i)


def compressed_suffix(path: Path) -> str:
    """Return .gz, .xz or .bz2 if a file begins like such a file, else an empty string."""
    with open(path, "rb") as file:
        head = file.read(max(map(len, COMPRESSED_MAGIC)))
    kind = next((kind for magic, kind in COMPRESSED_MAGIC.items() if head.startswith(magic)), "")
    return SUFFIX_OF_KIND.get(kind, "")


def _every_other_zero(head: bytes) -> bool:
    """Whether ASCII letters alternate with zero bytes, as in UTF-16 without a byte order mark."""
    part = head[:256]
    return len(part) >= 8 and any(part) and not (any(part[0::2]) and any(part[1::2]))
