"""Checkpoint of the dual variables of a long joint training.

After a crash the file is either complete or ignored.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.errors import Corrupt, NotFound
from xcray.kernels.training.pdsparse import REBASE, STATE, ActiveSets
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import sha256_arrays


class DualCheckpoint:
    """One file at `path`: active labels and beta of each sample, and the state of the passes.

    It is written to a temporary file, synced and renamed, at most every `seconds`. The next process
    reads it and continues with the same bits.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._saved_at = time.monotonic()

    def save(self, lists: ActiveSets, state: np.ndarray) -> None:
        """Save the state after a pass, if `seconds` have passed since the last time."""
        if time.monotonic() - self._saved_at < self._seconds or not self._path.parent.is_dir():
            return
        sizes = lists.size.astype(np.int64)
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        positions = np.arange(indptr[-1]) + np.repeat(lists.begin - indptr[:-1], sizes)
        arrays = {
            "indptr": indptr,
            "labels": lists.labels[positions],
            "values": lists.values[positions],
        }
        lists_of = {
            name: pa.LargeListArray.from_arrays(pa.array(indptr), pa.array(arrays[name]))
            for name in ("labels", "values")
        }
        about = {"state": state.tobytes().hex(), "sha256": _digest(arrays, state)}
        write_table(self._path, pa.table(lists_of).replace_schema_metadata(about))
        self._saved_at = time.monotonic()

    def load(self) -> tuple[ActiveSets, np.ndarray] | None:
        """Return the last saved state, ready to continue; None if there is none.

        A damaged file is renamed to `.damaged`, and the work is done again.
        """
        try:
            table = read_table(self._path)
            return _decode(table)
        except NotFound:
            return None
        except (Corrupt, pa.ArrowException, KeyError, ValueError, AttributeError):
            self._path.rename(self._path.with_suffix(".damaged"))
            return None


def _digest(arrays: dict[str, Any], state: np.ndarray) -> str:
    """Return the SHA-256 of everything that is saved."""
    return sha256_arrays({**arrays, "state": state.tobytes().hex()})


def _decode(table: pa.Table) -> tuple[ActiveSets, np.ndarray]:
    """Return lists and state of a saved table. Raises Corrupt if the digest differs."""
    about = table.schema.metadata
    labels, values = (table.column(name).chunk(0) for name in ("labels", "values"))
    arrays = {
        "indptr": labels.offsets.to_numpy(),
        "labels": labels.values.to_numpy(),
        "values": values.values.to_numpy(),
    }
    state = np.frombuffer(bytes.fromhex(about[b"state"].decode()), STATE).copy()
    if _digest(arrays, state) != about[b"sha256"].decode():
        raise Corrupt("the saved dual is not the one that was written")
    state["phase"], state["position"] = REBASE, 0
    begin, sizes = arrays["indptr"][:-1].copy(), np.diff(arrays["indptr"]).astype(np.int32)
    used = np.array([arrays["indptr"][-1]])
    return ActiveSets(
        begin, sizes, sizes.copy(), arrays["labels"].copy(), arrays["values"].copy(), used
    ), state
