"""Copies of data sets whose training rows stay in object storage.

remote.json                 schema version, URI of the whole data set
train/row_lengths.arrow     entries of each training row

Such a copy has all other files of the data set. Solvers read the rows page by page from the storage
(`xcray.solvers.indexed_bcd`). Everything else that needs them raises an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from xcray.arrays import CSR, Int32, frozen
from xcray.errors import Corrupt, InputError
from xcray.storage.array_files import read_arrays, write_arrays
from xcray.storage.atomic import read_json, write_json

REMOTE: Final = "remote.json"
LENGTHS: Final = "train/row_lengths.arrow"
ROW_FILES: Final = ("train/x_rows.arrow", "train/x_columns.arrow")
SCHEMA_VERSION: Final = 1


class RemoteRows(CSR):
    """The shape of a matrix whose entries are not on this machine.

    indptr: lengths of the rows, zeros if they are not known. Reading entries raises InputError.
    """

    @property
    def indices(self) -> NoReturn:
        """Raise InputError."""
        self._raise()

    @property
    def data(self) -> NoReturn:
        """Raise InputError."""
        self._raise()

    def _raise(self) -> NoReturn:
        """Raise InputError with the fix."""
        raise InputError(
            "the training rows of this data set are in object storage, and this needs them here: "
            "copy the whole data set by `xcray data pull`",
            code="ROWS_REMOTE",
        )


def remote_shape(indptr: Any, n_cols: int) -> RemoteRows:
    """Return a matrix without entries. None: no kernel accepts it by mistake."""
    absent: Any = None
    return RemoteRows(frozen(indptr, np.int64), absent, absent, n_cols)


def write_remote_rows(path: Path, uri: str, lengths: Int32) -> None:
    """Mark the directory `path` as a copy without the training rows of the data set at `uri`.

    lengths: (N,) entries of each row.
    """
    write_arrays(path / LENGTHS, {"lengths": lengths})
    write_json(path / REMOTE, {"schema_version": SCHEMA_VERSION, "uri": uri})


def read_remote_uri(path: Path) -> str | None:
    """Return the URI of the data set whose copy `path` is; None for a whole one. Raises Corrupt."""
    if not (path / REMOTE).exists():
        return None
    content = read_json(path / REMOTE)
    facts = content if isinstance(content, dict) else {}
    if facts.get("schema_version") != SCHEMA_VERSION or not isinstance(facts.get("uri"), str):
        raise Corrupt(f"{path.name}: {REMOTE} is not readable: remove the directory", file=REMOTE)
    return str(facts["uri"])


def map_remote_rows(path: Path, n_features: int) -> tuple[CSR, CSR]:
    """Return the shapes of X (N, D) and of its transpose. Raises Corrupt."""
    arrays = read_arrays(path / LENGTHS)
    if set(arrays) != {"lengths"}:
        raise Corrupt(f"{path.name}: {LENGTHS} is not readable: remove the directory", file=LENGTHS)
    indptr = np.concatenate([[0], np.cumsum(arrays["lengths"], dtype=np.int64)])
    n_rows = len(indptr) - 1
    return remote_shape(indptr, n_features), remote_shape(np.zeros(n_features + 1), n_rows)
