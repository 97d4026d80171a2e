"""Label names from a file: one per line, in the order of the ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.lines import text_lines
from xcray.data.readers.options import ReadOptions


@dataclass(frozen=True)
class LabelNames:
    """The names in order, and the base name of their file."""

    names: list[str]
    file: str

    @classmethod
    def read(cls, path: Path | str | None) -> LabelNames | None:
        """Return the names in a file; None if `path` is None.

        Raises NotFound, and DataError for an empty or repeated name.
        """
        if path is None:
            return None
        source, collector = Source(path, ReadOptions(), text=True), ErrorCollector()
        ids: dict[str, int] = {}
        for line in text_lines(source, collector):
            name = line.text.strip()
            if not name:
                raise source.error(
                    "LABEL_EMPTY",
                    "an empty label name",
                    line=line.number,
                    hint="write one name per line, without blank lines",
                )
            if name in ids:
                raise source.error(
                    "LABEL_DUPLICATE",
                    f"'{name[:60]}' is listed twice",
                    line=line.number,
                    value=name,
                )
            ids[name] = len(ids)
        collector.raise_errors()
        if not ids:
            raise source.error("EMPTY_FILE", "no label names; the file is empty")
        return cls(list(ids), source.name)


def label_order(name: str) -> tuple[int, int, str]:
    """Return the sort key of a label: whole numbers by value, then names."""
    is_id = name.isascii() and name.isdigit() and len(name) <= 18
    return (0, int(name), name) if is_id else (1, 0, name)
