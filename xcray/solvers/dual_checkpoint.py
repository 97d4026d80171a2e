"""The dual of a long joint training on disk, from pass to pass: what is there after a crash is whole, or is not taken."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.errors import Corrupt, NotFound
from xcray.kernels.training.pdsparse import REBASE, STATE, Lists
from xcray.storage.arrow import read_table, write_table
from xcray.storage.atomic import sha256_arrays


class Kept:
    """One file at `path`: active labels and beta of each sample, and the state of the passes.

    Written aside, synced and renamed, at most every `seconds`; read back by the next process, which goes on with the same bits.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._last = time.monotonic()

    def save(self, lists: Lists, state: np.ndarray) -> None:
        """Keep what is known after a pass, if it is time."""
        if time.monotonic() - self._last < self._seconds or not self._path.parent.is_dir():
            return
        sizes = lists.size.astype(np.int64)
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(indptr[-1]) + np.repeat(lists.begin - indptr[:-1], sizes)
        arrays = {"indptr": indptr, "labels": lists.labels[places], "values": lists.values[places]}
        lists_of = {
            name: pa.LargeListArray.from_arrays(pa.array(indptr), pa.array(arrays[name]))
            for name in ("labels", "values")
        }
        about = {"state": state.tobytes().hex(), "sha256": _digest(arrays, state)}
        write_table(self._path, pa.table(lists_of).replace_schema_metadata(about))
        self._last = time.monotonic()

    def load(self) -> tuple[Lists, np.ndarray] | None:
        """What was kept last, ready to go on; None when there is nothing. A damaged file is set aside: the work is done again."""
        try:
            table = read_table(self._path)
            return _opened(table)
        except NotFound:
            return None
        except (Corrupt, pa.ArrowException, KeyError, ValueError, AttributeError):
            self._path.rename(self._path.with_suffix(".damaged"))
            return None


def _digest(arrays: dict[str, Any], state: np.ndarray) -> str:
    """SHA-256 over all that is kept."""
    return sha256_arrays({**arrays, "state": state.tobytes().hex()})


def _opened(table: pa.Table) -> tuple[Lists, np.ndarray]:
    """Lists and state of a kept table. Raises Corrupt when they are not those that were written."""
    about = table.schema.metadata
    labels, values = (table.column(name).chunk(0) for name in ("labels", "values"))
    arrays = {
        "indptr": labels.offsets.to_numpy(),
        "labels": labels.values.to_numpy(),
        "values": values.values.to_numpy(),
    }
    state = np.frombuffer(bytes.fromhex(about[b"state"].decode()), STATE).copy()
    if _digest(arrays, state) != about[b"sha256"].decode():
        raise Corrupt("the kept dual is not the one that was written")
    state["phase"], state["position"] = REBASE, 0
    begin, sizes = arrays["indptr"][:-1].copy(), np.diff(arrays["indptr"]).astype(np.int32)
    used = np.array([arrays["indptr"][-1]])
    return Lists(
        begin, sizes, sizes.copy(), arrays["labels"].copy(), arrays["values"].copy(), used
    ), state
