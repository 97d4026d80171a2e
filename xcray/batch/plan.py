"""The input as chunks of rows. The cuts depend on the files and the request, not on the workers.

A chunk becomes one part file. It is small enough to distribute and repeat, and large enough that a
big input does not give too many tiny files: a 64th of the rows, from 4096 to 65536, and fewer if
`k` is so large that a part would be heavy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.batch.row_schema import RowSchema
from xcray.errors import InputError
from xcray.storage.atomic import sha256_file

TARGET_PARTS: Final = 64  # parts of an input of ordinary size
MIN_ROWS, MAX_ROWS = 4096, 65536  # rows per part
# Answers per part, rows times k; four times as many if the caller requests large parts.
MAX_CELLS: Final = 1 << 22
MAX_PARTS: Final = 100_000  # parts of an output, because of file systems and manifests


class Chunk(NamedTuple):
    """Rows [first_row, first_row + n_rows) of the input.

    file: index in the plan's files.
    """

    number: int
    file: int
    first_row: int
    n_rows: int


class InputFile(NamedTuple):
    """A file of the input.

    path: file to read. name: for messages. n_bytes, sha256: of the original file `source`.
    first_row: number of its first row. stamp: changes when the original file is modified.
    """

    path: str
    name: str
    n_bytes: int
    sha256: str
    n_rows: int
    first_row: int
    source: str
    stamp: tuple[int, ...]


class BatchPlan(NamedTuple):
    """The files and the chunks, in order, and the schema of the rows."""

    files: tuple[InputFile, ...]
    chunks: tuple[Chunk, ...]
    schema: RowSchema

    @property
    def n_rows(self) -> int:
        """Return the number of rows of the input."""
        return sum(file.n_rows for file in self.files)

    def check_unchanged(self) -> None:
        """Raise InputError if a file was modified after planning.

        Its answers would be a mixture.
        """
        for file in self.files:
            if file_stamp(Path(file.source)) != file.stamp:
                raise changed_error(file.name)

    def describe_files(self) -> list[dict[str, Any]]:
        """Return the files for a manifest: names, sizes, checksums, rows; JSON."""
        return [
            {"name": f.name, "bytes": f.n_bytes, "sha256": f.sha256, "rows": f.n_rows}
            for f in self.files
        ]


def changed_error(name: str) -> InputError:
    """Return the error for a file that was modified after its rows were counted."""
    return InputError(
        f"{name} was changed during the prediction: remove the run directory and start again",
        code="CHANGED",
    )


def rows_per_part(n_rows: int, k: int, requested: int = 0) -> int:
    """Return the rows per part for an input of `n_rows` with k answers per row.

    requested: the caller's choice, 0 for none; it is limited to the valid range.
    """
    if requested:
        return max(1, min(max(requested, -(-n_rows // MAX_PARTS)), 4 * MAX_CELLS // k))
    return max(1, min(max(MIN_ROWS, -(-n_rows // TARGET_PARTS)), MAX_ROWS, MAX_CELLS // k))


def make_input_file(
    path: Path, n_rows: int, first_row: int, *, source: Path | None = None
) -> InputFile:
    """Return a file's entry in a plan; reads the file once for its checksum.

    source: the original file, if `path` was made from it.
    """
    source = source or path
    stamp = file_stamp(source)
    digest = sha256_file(source)
    return InputFile(
        str(path.resolve()),
        source.name,
        stamp[0],
        digest,
        n_rows,
        first_row,
        str(source.resolve()),
        stamp,
    )


def file_stamp(path: Path) -> tuple[int, ...]:
    """Return size, modification time and inode of a file; empty if it is missing."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino
