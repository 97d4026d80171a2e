"""The input as chunks of rows. The cuts depend on the files and on what is asked, never on who reads them.

A chunk becomes one part file. It is small enough that work can be spread and redone, and large enough that a big input does not
become a heap of tiny files: a 64th of the rows, from 4096 to 65536, and fewer when `k` is so large that a part would be heavy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.batch.row_schema import Form
from xcray.errors import InputError
from xcray.storage.atomic import sha256_file

SHARE: Final = 64  # parts that an input of ordinary size is cut into
LEAST, MOST = 4096, 65536  # rows of a part
CELLS: Final = (
    1 << 22
)  # answers of a part, rows times k; four times as many when somebody asks for large parts
MOST_PARTS: Final = 100_000  # of an output: file systems and manifests have their limits


class Chunk(NamedTuple):
    """Rows [first_row, first_row + n_rows) of the input; in the file they begin at `offset` and at line `line`, if it has lines.

    file: which of the plan's files; last: whether it ends with the file; n_bytes: of the lines.
    """

    number: int
    file: int
    first_row: int
    n_rows: int
    offset: int
    n_bytes: int
    line: int
    last: bool


class InputFile(NamedTuple):
    """A file of the input: where it is read, its name for people, bytes and SHA-256 of what was given, its rows from `first_row`.

    base: bytes before the first line (a byte order mark). stamp: what changes when somebody writes to the file given.
    """

    path: str
    name: str
    n_bytes: int
    sha256: str
    n_rows: int
    first_row: int
    base: int
    given: str
    stamp: tuple[int, ...]


class Plan(NamedTuple):
    """The files and the chunks, in order, and how rows lie in them."""

    files: tuple[InputFile, ...]
    chunks: tuple[Chunk, ...]
    form: Form

    @property
    def n_rows(self) -> int:
        """Rows of the input."""
        return sum(file.n_rows for file in self.files)

    def check_unchanged(self) -> None:
        """Raise InputError when a file was written to since it was planned: its answers would be a mixture."""
        for file in self.files:
            if stamp_of(Path(file.given)) != file.stamp:
                raise changed(file.name)

    def described(self) -> list[dict[str, Any]]:
        """The files for a manifest: names, sizes, checksums, rows; JSON."""
        return [
            {"name": f.name, "bytes": f.n_bytes, "sha256": f.sha256, "rows": f.n_rows}
            for f in self.files
        ]


def changed(name: str) -> InputError:
    """The error for a file that is not what it was when its rows were counted."""
    return InputError(
        f"{name} was changed while its rows were answered: remove the run directory and begin anew",
        code="CHANGED",
    )


def rows_of_part(n_rows: int, k: int, wanted: int = 0) -> int:
    """Rows of a part of an input of `n_rows` with k answers each; wanted: what the caller chose, 0 for nothing, within bounds."""
    if wanted:
        return max(1, min(max(wanted, -(-n_rows // MOST_PARTS)), 4 * CELLS // k))
    return max(1, min(max(LEAST, -(-n_rows // SHARE)), MOST, CELLS // k))


def input_file(
    path: Path, n_rows: int, first_row: int, *, base: int = 0, given: Path | None = None
) -> InputFile:
    """A file's entry in a plan; reads it once for its checksum. given: the file that was named, when `path` was made from it."""
    given = given or path
    stamp = stamp_of(given)
    digest = sha256_file(given)
    return InputFile(
        str(path.resolve()),
        given.name,
        stamp[0],
        digest,
        n_rows,
        first_row,
        base,
        str(given.resolve()),
        stamp,
    )


def stamp_of(path: Path) -> tuple[int, ...]:
    """Size, time of change and inode of a file; empty when it is gone."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return ()
    return found.st_size, found.st_mtime_ns, found.st_ino
