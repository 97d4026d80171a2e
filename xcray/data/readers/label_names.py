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
        source = Source(path, ReadOptions(), text=True, format="label names")
        ids: dict[str, int] = {}
        for line in text_lines(source, ErrorCollector(max_errors=1)):
            name = line.text.strip()
            if not name:
                hint = "write one name per line, without blank lines"
                raise source.error(
                    "LABEL_EMPTY", "an empty label name", line=line.number, hint=hint
                )
            if name in ids:
                problem = f"'{name[:60]}' is listed twice"
                raise source.error("LABEL_DUPLICATE", problem, line=line.number, value=name)
            ids[name] = len(ids)
        if not ids:
            raise source.error("EMPTY_FILE", "no label names; the file is empty")
        return cls(list(ids), source.name)

    def ids(self, label_ids: bool = False) -> dict[str, int]:
        """Return the id of each label that a file can have.

        Labels are names. Whole numbers are ids if labels are declared to be (`label_ids`), or if no
        name is a whole number. `x` stands for the name `<x>` if all names have this form.
        """
        positions = {str(k): k for k in range(len(self.names))}
        if label_ids:
            return positions
        names = {name: k for k, name in enumerate(self.names)}
        if all(name.startswith("<") and name.endswith(">") for name in self.names):
            names |= {name[1:-1]: k for k, name in enumerate(self.names)}
        has_numbers = any(label_order(name)[0] == 0 for name in self.names)
        return names if has_numbers else {**positions, **names}


def unknown_label_hint(label: str, names: LabelNames) -> str:
    """Return the fix for a label that is not in the names file."""
    if label_order(label)[0]:
        return "add it to that file"
    last = len(names.names) - 1
    return f"add it to that file; for positions in it, from 0 to {last}, use label_ids"


def label_order(name: str) -> tuple[int, int, str]:
    """Return the sort key of a label: whole numbers by value, then names."""
    is_id = name.isascii() and name.isdigit() and len(name) <= 18
    return (0, int(name), name) if is_id else (1, 0, name)
