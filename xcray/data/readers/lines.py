"""Decoded lines of a text file: UTF-8, or an error with its position; bytes are never replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.errors import DataError


class TextLine(NamedTuple):
    """A line without its end, and its number from 1."""

    text: str
    number: int


def text_lines(source: Source, collector: ErrorCollector) -> Iterator[TextLine]:
    """Yield every line of the file.

    Lines that are not UTF-8 are added to the collector and left out. A CR inside a line is
    text.
    """
    for block in source.blocks():
        lines = block.data.split(b"\n")
        if block.ended:
            lines.pop()
        offset = block.offset
        for number, whole in enumerate(lines, block.line):
            line = whole.removesuffix(b"\r")
            try:
                yield TextLine(line.decode(), number)
            except UnicodeDecodeError as error:
                collector.add(_encoding_error(source, line, number, offset, error))
            offset += len(whole) + 1


def lone_cr_error(source: Source, number: int, text: str) -> DataError | None:
    """Return the error for an unreadable line with a CR in it; None without CR."""
    at = text.find("\r")
    if at < 0:
        return None
    value = text[max(0, at - 20) : at + 20]
    return source.error(
        "LINE_ENDING", "a CR inside the line", line=number, column=at + 1, value=value
    )


def _encoding_error(
    source: Source, line: bytes, number: int, offset: int, error: UnicodeDecodeError
) -> DataError:
    """Return the error for a line that is not UTF-8. offset: of the line in the file."""
    value = line[error.start : error.start + 8].decode("latin-1").encode("unicode_escape").decode()
    column = len(line[: error.start].decode("utf-8")) + 1
    problem = f"not UTF-8 at offset {offset + error.start}"
    return source.error("ENCODING", problem, line=number, column=column, value=value)
