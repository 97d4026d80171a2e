"""Label names from a file: one a line, in the order of the ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xcray.data.readers.blocks import Source
from xcray.data.readers.error_log import Tally
from xcray.data.readers.lines import text_lines
from xcray.data.readers.options import ReadOptions


@dataclass(frozen=True)
class Names:
    """The names in order, and the base name of their file."""

    names: list[str]
    file: str

    @classmethod
    def read(cls, path: Path | str | None) -> Names | None:
        """Names of a file, or None without one. Raises NotFound, or DataError for an empty or repeated name."""
        if path is None:
            return None
        source, tally = Source(path, ReadOptions(), text=True), Tally()
        ids: dict[str, int] = {}
        for line in text_lines(source, tally):
            name = line.text.strip()
            if not name:
                raise source.error(
                    "LABEL_EMPTY",
                    "an empty label name",
                    line=line.number,
                    hint="one name a line, no blank lines",
                )
            if name in ids:
                raise source.error(
                    "LABEL_DUPLICATE", f"'{name[:60]}' is named twice", line=line.number, value=name
                )
            ids[name] = len(ids)
        tally.close()
        if not ids:
            raise source.error("EMPTY_FILE", "no label names; the file is empty")
        return cls(list(ids), source.name)
