"""Finished blocks on disk: a commit each. Written aside, synced, renamed; named by their content; read back on resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import csr, frozen
from xcray.errors import Conflict, Corrupt, XcrayError
from xcray.files import read_json, read_table, write_json, write_table
from xcray.solvers.block import Block, merge


class Parts:
    """The committed blocks of one run, in `directory`; `fingerprint` says what run it is (data, solver, parameters).

    Parts found there are checked against their names (a SHA-256 of the content); a damaged part is set aside and its
    labels are solved again. Raises Conflict when the directory belongs to another run.
    """

    def __init__(self, directory: Path, fingerprint: Mapping[str, Any], *, n_labels: int, n_features: int) -> None:
        self._directory, self._n_labels, self._n_features = directory, n_labels, n_features
        directory.mkdir(parents=True, exist_ok=True)
        self._claim(dict(fingerprint))
        self._blocks: list[Block] = []
        self.damaged: list[str] = []
        self._done = np.zeros(n_labels, bool)
        for path in sorted(directory.glob("part-*.arrow")):
            self._adopt(path)

    @property
    def missing(self) -> np.ndarray:
        """Labels that no part holds, ascending, int32."""
        return np.flatnonzero(~self._done).astype(np.int32)

    def commit(self, block: Block) -> None:
        """Make a block durable; when this returns, no crash loses it."""
        path = self._directory / f"part-{block.digest()[:32]}.arrow"
        write_table(path, _table(block))
        self._keep(_block(path))  # mapped, so that committed weights leave memory

    def merged(self) -> Block:
        """All labels in one block. Raises ValueError when some are missing."""
        return merge(self._blocks, self._n_labels, self._n_features)

    def _claim(self, fingerprint: dict[str, Any]) -> None:
        """Write the run's fingerprint, or compare with the one that is there."""
        path = self._directory / "run.json"
        if not path.exists():
            write_json(path, fingerprint)
            return
        found = read_json(path)
        if found != json.loads(json.dumps(fingerprint)):
            changed = sorted(k for k in {*found, *fingerprint} if found.get(k) != fingerprint.get(k))
            raise Conflict(
                f"the run directory holds another run (other {', '.join(changed)}); choose a new one, or repeat its settings"
            )

    def _adopt(self, path: Path) -> None:
        """Keep a part of an earlier attempt, or set it aside when its content is not what its name says."""
        try:
            block = _block(path)
            sound = (
                f"part-{block.digest()[:32]}.arrow" == path.name and len(block.labels) > 0 and block.labels.max() < self._n_labels
            )
        except (XcrayError, KeyError, ValueError, pa.ArrowException):
            sound = False
        if sound and block.W.n_cols == self._n_features:
            self._keep(block)
        else:
            path.rename(path.with_suffix(".damaged"))
            self.damaged.append(path.name)

    def _keep(self, block: Block) -> None:
        """Count a block's labels as done."""
        self._blocks.append(block)
        self._done[block.labels] = True


def _table(block: Block) -> pa.Table:
    """A block as a table of one row a label."""
    offsets = pa.array(block.W.indptr)
    columns = {
        "label": pa.array(block.labels),
        "bias": pa.array(block.bias),
        "indices": pa.LargeListArray.from_arrays(offsets, pa.array(block.W.indices)),
        "values": pa.LargeListArray.from_arrays(offsets, pa.array(block.W.data)),
    }
    records = {f"record.{name}": pa.array(np.ascontiguousarray(block.records[name])) for name in block.records.dtype.names or ()}
    dtype = json.dumps([[name, block.records.dtype[name].str] for name in block.records.dtype.names or ()])
    return pa.table({**columns, **records}).replace_schema_metadata({"n_cols": str(block.W.n_cols), "records": dtype})


def _block(path: Path) -> Block:
    """A block mapped from its part file. Raises Corrupt, or KeyError and ValueError for a table of another kind."""
    table = read_table(path)
    if table.num_rows == 0 or any(column.num_chunks != 1 for column in table.columns):
        raise Corrupt(f"{path.name} does not hold one batch of labels")
    indices, values = table.column("indices").chunk(0), table.column("values").chunk(0)
    indptr = indices.offsets.to_numpy()
    W = csr(indptr, indices.values.to_numpy(), values.values.to_numpy(), int(table.schema.metadata[b"n_cols"]))
    dtype = np.dtype([(name, kind) for name, kind in json.loads(table.schema.metadata[b"records"])], align=True)
    records = np.zeros(table.num_rows, dtype)
    for name in dtype.names or ():
        records[name] = table.column(f"record.{name}").to_numpy()
    labels = frozen(table.column("label").to_numpy(), np.int32)
    return Block(labels, W, frozen(table.column("bias").to_numpy(), np.float64), records)
