"""Decoded lines of a text file: UTF-8 or an error with its place, never a silent replacement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import Tally
from xcray.errors import DataError


class TextLine(NamedTuple):
    """A line without its end, and its number from 1."""

    text: str
    number: int


def text_lines(source: Source, tally: Tally) -> Iterator[TextLine]:
    """Every line of the file; lines that are no UTF-8 are told to the tally and left out. A CR inside a line is text."""
    for block in source.blocks():
        lines = block.data.split(b"\n")
        if block.ended:
            lines.pop()
        offset = block.offset
        for i, line in enumerate(lines):
            number = block.line + i
            text = _decoded(source, line.removesuffix(b"\r"), number, offset, tally)
            offset += len(line) + 1
            if text is not None:
                yield TextLine(text, number)


def lone_cr(source: Source, number: int, text: str) -> DataError | None:
    """The error for a line that can't be read because a CR stands where a line should end; None when there is no CR."""
    at = text.find("\r")
    if at < 0:
        return None
    hint = "convert line ends to LF: tr '\\r' '\\n'"
    return source.error(
        "LINE_ENDING",
        "a CR inside the line",
        line=number,
        column=at + 1,
        value=text[max(0, at - 20) : at + 20],
        hint=hint,
    )


def _decoded(source: Source, line: bytes, number: int, offset: int, tally: Tally) -> str | None:
    """The text of a line, or None when it has none."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = (
            line[error.start : error.start + 8].decode("latin-1").encode("unicode_escape").decode()
        )
        column = len(line[: error.start].decode("utf-8")) + 1
        problem = f"not UTF-8 at offset {offset + error.start}"
        tally.bad(
            source.error(
                "ENCODING",
                problem,
                line=number,
                column=column,
                value=found,
                hint="save the file as UTF-8",
            )
        )
        return None
