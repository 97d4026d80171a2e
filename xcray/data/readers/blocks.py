"""Bytes of a text file in blocks of whole lines: decompressed by suffix, sniffed, counted, capped.

At most one block and one unfinished line are in memory. What is no text is refused by what its first bytes look like:
compressed without the suffix, an archive, UTF-16, carriage returns alone.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from xcray.data.readers.error_codes import mend
from xcray.data.readers.options import MIB, ReadOptions
from xcray.errors import DataError, NotFound
from xcray.storage.atomic import sha256_file

BLOCK = 4 * MIB
HEAD = 1 << 16  # bytes looked at before reading
FREE = 64 * MIB  # decompressed bytes below which no expansion is suspicious
OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress",
}
ARCHIVES = {b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "rar"}
ARCHIVE_NAMES = (
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
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
BOM = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Whole lines of a file: the bytes, the number of the first line (from 1), and the file offset of the first byte."""

    data: bytes
    line: int
    offset: int
    ended: bool  # whether the last line has its newline


class Source:
    """A text file to be read once, line by line.

    path: the file; its suffix .gz, .xz or .bz2 says that it is compressed. `name`: what errors call it, never a path.
    text: whether the format is one of documents (then a zip is an archive; else it is just compressed).
    by_row: whether places are told as rows from 0, because there are no lines.
    """

    def __init__(
        self, path: Path | str, options: ReadOptions, text: bool = False, by_row: bool = False
    ) -> None:
        self.path = Path(path)
        self.options = options
        self.text = text
        self.by_row = by_row
        self.name = self.path.name
        self.too_long = "FIELD_TOO_LONG" if text else "LINE_TOO_LONG"

    def error(self, code: str, problem: str, **details: Any) -> DataError:
        """A DataError about this file; its hint is that of its code when none is given."""
        details["hint"] = details.get("hint") or mend(code)
        if self.by_row and "line" in details:
            details["row"] = details.pop("line")
        return DataError(code, problem, file=self.name, **details)

    def blocks(self) -> Iterator[Block]:
        """The lines of the file. Raises NotFound, or DataError for files that are no text or beyond the limits."""
        self._check_file()
        pieces: list[bytes] = []
        held, line, offset = 0, 1, 0  # the offset counts decompressed bytes
        for chunk in self._chunks():
            cut = chunk.rfind(b"\n") + 1
            if cut:
                data = b"".join([*pieces, chunk[:cut]])
                self._check_lines(data, line)
                self._check_binary(data, line, offset)
                yield Block(data, line, offset, True)
                line += data.count(b"\n")
                offset += len(data)
                pieces, held = [], 0
            if cut < len(chunk):
                pieces.append(chunk[cut:])
                held += len(chunk) - cut
            if held > self.options.max_line_bytes:
                raise self._long(line)
        if pieces:
            data = b"".join(pieces)
            self._check_binary(data, line, offset)
            yield Block(data, line, offset, False)

    def _chunks(self) -> Iterator[bytes]:
        """Decompressed bytes as they come, without byte order mark, within the limits on growth."""
        opener = OPENERS.get(self.path.suffix.lower())
        total, size = 0, self.path.stat().st_size
        try:
            with (opener or open)(self.path, "rb") as handle:
                head = handle.read(HEAD)
                self._sniff(head)
                chunk = head.removeprefix(BOM)
                while head:
                    total += len(head)
                    if opener and total > min(
                        self.options.max_decompressed, max(FREE, size * self.options.max_expansion)
                    ):
                        raise self._bomb(total, size)
                    if chunk:
                        yield chunk
                    head = chunk = handle.read(BLOCK)
        except FileNotFoundError:
            raise NotFound(f"there is no file {self.name}") from None
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
            raise self._damaged(error) from None
        except OSError as error:
            if error.errno is None:  # bz2 says it this way
                raise self._damaged(error) from None
            raise

    def _check_file(self) -> None:
        """Existence, archive names, and what the sender declared about size and checksum."""
        if not self.path.is_file():
            raise NotFound(f"there is no file {self.name}")
        lower = self.name.lower()
        if lower.endswith(ARCHIVE_NAMES):
            raise self.error(
                "ARCHIVE_REFUSED", "archives are not read", hint="unpack it and give one file"
            )
        if lower.endswith((".zst", ".lz4", ".z")):
            raise self.error(
                "COMPRESSED",
                "this compression is not read",
                hint="decompress it, or use .gz, .xz or .bz2",
            )
        self.check_declared()

    def check_declared(self) -> None:
        """Compare the file with the size and checksum that its sender declared. Raises DataError UPLOAD_TRUNCATED."""
        wanted, size = self.options.expected_bytes, self.path.stat().st_size
        if wanted is not None and size != wanted:
            raise self.error(
                "UPLOAD_TRUNCATED",
                f"the file has {size} bytes, {wanted} were declared",
                hint="send it again",
            )
        if self.options.expected_sha256 not in (
            None,
            sha256_file(self.path) if self.options.expected_sha256 else None,
        ):
            raise self.error(
                "UPLOAD_TRUNCATED",
                "the file's SHA-256 is not the declared one",
                hint="send it again",
            )

    def _sniff(self, head: bytes) -> None:
        """Refuse what is not UTF-8 text with line feeds, by its first bytes."""
        if head.startswith(ZIP):
            raise self._zip(head)
        if head.startswith(b"PAR1\x15"):
            raise self.error(
                "FORMAT_MISMATCH", "looks like Parquet", hint="read it with format=parquet"
            )
        for magic, kind in COMPRESSED.items():
            if head.startswith(magic):
                raise self.error(
                    "COMPRESSED",
                    f"looks like {kind}, but its name does not say so",
                    hint="decompress it, or use .gz, .xz or .bz2",
                )
        kind = next(
            (k for magic, k in ARCHIVES.items() if head.startswith(magic)),
            "tar" if head[257:262] == b"ustar" else "",
        )
        if kind:
            raise self.error(
                "ARCHIVE_REFUSED",
                f"looks like a {kind} archive",
                hint="unpack it and give one file",
            )
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) or _every_other_zero(head):
            raise self.error(
                "ENCODING", "looks like UTF-16", line=1, column=1, hint="save it as UTF-8"
            )
        self._check_binary(head, 1, 0)
        if b"\r" in head and b"\n" not in head:
            at = head.index(b"\r")
            raise self.error(
                "LINE_ENDING",
                "lines end with CR alone",
                line=1,
                column=at + 1,
                hint="convert line ends to LF: tr '\\r' '\\n'",
            )

    def _zip(self, head: bytes) -> DataError:
        """The error for zip bytes: a spreadsheet, an archive, or just compressed, by the format that was asked for."""
        if b"[Content_Types].xml" in head or b"xl/" in head:
            return self.error(
                "FORMAT_MISMATCH", "looks like a spreadsheet (zip/xlsx)", hint="export it as CSV"
            )
        if self.text:
            return self.error(
                "ARCHIVE_REFUSED", "looks like a zip archive", hint="unpack it and give one file"
            )
        return self.error("COMPRESSED", "looks like zip", hint="unpack it and give one file")

    def _bomb(self, total: int, size: int) -> DataError:
        """The error for a file that grows too much."""
        return self.error(
            "DECOMPRESSED_LIMIT",
            f"{size} bytes grew to more than {total - BLOCK} when decompressed",
            hint="decompress it yourself, or raise max_decompressed and max_expansion",
        )

    def _damaged(self, error: Exception) -> DataError:
        """The error for compressed bytes that end early or make no sense."""
        return self.error(
            "COMPRESSED_CORRUPT",
            f"can't be decompressed: {error or type(error).__name__}",
            hint="send it again, or decompress it",
        )

    def _long(self, line: int) -> DataError:
        """The error for a line beyond the limit."""
        return self.error(
            self.too_long,
            f"the line is longer than {self.options.max_line_bytes} bytes",
            line=line,
            hint="is the file one line? if lines may be so long, raise max_line_bytes",
        )

    def _check_binary(self, data: bytes, line: int, offset: int) -> None:
        """Raise BINARY_DATA with its place when there is a zero byte."""
        at = data.find(b"\0")
        if at >= 0:
            line += data.count(b"\n", 0, at)
            column = at - data.rfind(b"\n", 0, at)
            raise self.error(
                "BINARY_DATA",
                f"a zero byte at offset {offset + at}",
                line=line,
                column=column,
                hint="is this a text file?",
            )

    def _check_lines(self, data: bytes, line: int) -> None:
        """No line of a block is beyond the limit; only blocks larger than the limit can hold one."""
        if len(data) <= self.options.max_line_bytes:
            return
        for i, text in enumerate(data.split(b"\n")):
            if len(text) > self.options.max_line_bytes:
                raise self._long(line + i)


def _every_other_zero(head: bytes) -> bool:
    """Whether ASCII letters alternate with zero bytes, as in UTF-16 without a mark."""
    part = head[:256]
    return len(part) >= 8 and any(part) and not (any(part[0::2]) and any(part[1::2]))
