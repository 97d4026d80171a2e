"""Finished blocks on disk: a commit each. Written aside, synced, renamed; named by their content; read back on resume.

What stays in memory of a finished label is where it lies: 16 bytes, whatever its weights are. In the end the parts are
merged into one file, a range of labels at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import Int64, csr, frozen
from xcray.errors import Conflict, Corrupt, XcrayError
from xcray.index.packed import BUDGET, ENTRY, ranges
from xcray.kernels.merge import copy_rows
from xcray.solvers.solved_labels import Block, untrained
from xcray.storage.arrow import MatrixWriter, read_csr, read_table, write_table
from xcray.storage.atomic import read_json, write_json


class Parts:
    """The committed blocks of one run, in `directory`; `fingerprint` says what run it is (data, solver, parameters).

    Parts found there are checked against their names (a SHA-256 of the content); a damaged part is set aside and its
    labels are solved again. Raises Conflict when the directory belongs to another run.

    damaged: names of the parts that were set aside.
    """

    def __init__(
        self, directory: Path, fingerprint: Mapping[str, Any], *, n_labels: int, n_features: int
    ) -> None:
        self._directory = directory
        self._n_labels = n_labels
        self._n_features = n_features
        directory.mkdir(parents=True, exist_ok=True)
        claim(directory, fingerprint)
        self._names: list[str] = []
        self._part = np.full(n_labels, -1, np.int32)  # which of the names holds a label
        self._row = np.zeros(n_labels, np.int32)  # and where in it
        self._length = np.zeros(n_labels, np.int64)  # its weights
        self.damaged: list[str] = []
        for path in sorted(directory.glob("part-*.arrow")):
            self._adopt(path)

    @property
    def missing(self) -> np.ndarray:
        """Labels that no part holds, ascending, int32."""
        return np.flatnonzero(self._part < 0).astype(np.int32)

    @property
    def lengths(self) -> Int64:
        """Weights of each label, 0 for those that are not done: (K,) int64."""
        return self._length

    def commit(self, block: Block) -> None:
        """Make a block durable; when this returns, no crash loses it."""
        path = self._directory / f"part-{block.digest()[:32]}.arrow"
        write_table(path, _table(block))
        self._keep(path.name, block)

    def clear(self) -> None:
        """Forget and remove all parts: what was in them is made anew, as a whole."""
        for name in self._names:
            (self._directory / name).unlink(missing_ok=True)
        self._names.clear()
        self._part[:], self._row[:], self._length[:] = -1, 0, 0

    def merge(
        self,
        path: Path,
        *,
        budget: int = BUDGET,
        allow_missing: bool = False,
        positives: Any = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Block:
        """All labels in one block, whose weights are written to the matrix file `path` and mapped from there.

        budget: bytes of weights in memory at once, beside the records and 32 bytes a label; the file is the same for any.
        allow_missing: labels that no part holds get no weights, bias -1 and a record that says so (see `untrained`), with
        `positives` (K,), their rows in training. tick: called after each range of labels.
        Raises ValueError naming the first missing label unless they are allowed, Corrupt when a part is not what it was.
        """
        missing = self.missing
        if len(missing) and not allow_missing:
            raise ValueError(f"label {int(missing[0])} is in no part")
        indptr = np.concatenate([[0], np.cumsum(self._length)])
        with MatrixWriter(path, indptr, self._n_features) as out:
            for first, stop in ranges(indptr, budget // ENTRY):
                n = int(indptr[stop] - indptr[first])
                indices, weights = np.empty(n, np.int32), np.empty(n, np.float32)
                for labels, part in self._parts_of(first, stop):
                    W = read_csr(self._directory / part)
                    rows = self._row[labels].astype(np.int64)
                    if W.n_rows <= rows.max() or not np.array_equal(
                        np.diff(W.indptr)[rows], self._length[labels]
                    ):
                        raise _changed(part)
                    copy_rows(
                        W,
                        frozen(rows, np.int64),
                        frozen(indptr[labels] - indptr[first], np.int64),
                        indices,
                        weights,
                    )
                out.write(int(indptr[first]), indices, weights)
                tick()
        bias, records = self._columns(missing, positives)
        return Block(np.arange(self._n_labels, dtype=np.int32), read_csr(path), bias, records)

    def _parts_of(self, first: int, stop: int) -> Iterator[tuple[Int64, str]]:
        """Which labels of [first, stop) lie in which part: (n,) labels and the part's name, each part once."""
        part = self._part[first:stop]
        order = np.argsort(part, kind="stable")
        held = order[np.searchsorted(part[order], 0) :]
        for labels in np.split(held, np.flatnonzero(np.diff(part[held])) + 1):
            if len(labels):
                yield labels + first, self._names[part[labels[0]]]

    def _columns(self, missing: Any, positives: Any) -> tuple[Any, Any]:
        """Biases and records of all labels."""
        bias, records = np.empty(self._n_labels), None
        for labels, part in self._parts_of(0, self._n_labels):
            block, rows = _block(self._directory / part), self._row[labels]
            if not np.array_equal(block.labels[rows], labels):
                raise _changed(part)
            if records is None:
                records = np.empty(self._n_labels, block.records.dtype)
            bias[labels], records[labels] = block.bias[rows], block.records[rows]
        records = untrained(np.arange(self._n_labels)) if records is None else records
        if len(missing):
            bias[missing] = -1.0
            records[missing] = untrained(missing, positives, records.dtype)
        return frozen(bias, np.float64), records

    def _adopt(self, path: Path) -> None:
        """Keep a part of an earlier attempt, or set it aside when its content is not what its name says."""
        try:
            block = _block(path)
            labels, named = block.labels, f"part-{block.digest()[:32]}.arrow" == path.name
            sound = (
                named and len(labels) > 0 and 0 <= labels.min() and labels.max() < self._n_labels
            )
        except (XcrayError, KeyError, ValueError, pa.ArrowException):
            sound = False
        if sound and block.W.n_cols == self._n_features:
            self._keep(path.name, block)
        else:
            path.rename(path.with_suffix(".damaged"))
            self.damaged.append(path.name)

    def _keep(self, name: str, block: Block) -> None:
        """Note where the block's labels lie, but for those that an earlier part holds."""
        lengths, new = np.diff(block.W.indptr), self._part[block.labels] < 0
        labels = block.labels[new]
        self._part[labels], self._row[labels], self._length[labels] = (
            len(self._names),
            np.flatnonzero(new),
            lengths[new],
        )
        self._names.append(name)


def claim(directory: Path, fingerprint: Mapping[str, Any]) -> None:
    """Write a run's fingerprint (JSON) into its directory, or compare with the one there. Raises Conflict when it is another."""
    path, wanted = directory / "run.json", json.loads(json.dumps(dict(fingerprint)))
    if not path.exists():
        write_json(path, wanted)
        return
    found = read_json(path)
    if found != wanted:
        changed = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
        raise Conflict(
            f"the run directory holds another run (other {', '.join(changed)}); choose a new one, or repeat its settings"
        )


def _changed(part: str) -> Corrupt:
    """A part is not what it was when it was committed or adopted; opening the run again looks closer."""
    return Corrupt(
        f"part file {part} was changed while the run was under way; run the training again",
        file=part,
    )


def _table(block: Block) -> pa.Table:
    """A block as a table of one row a label."""
    offsets = pa.array(block.W.indptr)
    columns = {
        "label": pa.array(block.labels),
        "bias": pa.array(block.bias),
        "indices": pa.LargeListArray.from_arrays(offsets, pa.array(block.W.indices)),
        "values": pa.LargeListArray.from_arrays(offsets, pa.array(block.W.data)),
    }
    records = {
        f"record.{name}": pa.array(np.ascontiguousarray(block.records[name]))
        for name in block.records.dtype.names or ()
    }
    dtype = json.dumps(
        [[name, block.records.dtype[name].str] for name in block.records.dtype.names or ()]
    )
    return pa.table({**columns, **records}).replace_schema_metadata(
        {"n_cols": str(block.W.n_cols), "records": dtype}
    )


def _block(path: Path) -> Block:
    """A block mapped from its part file. Raises Corrupt, or KeyError and ValueError for a table of another kind."""
    table = read_table(path)
    if table.num_rows == 0 or any(column.num_chunks != 1 for column in table.columns):
        raise Corrupt(f"{path.name} does not hold one batch of labels")
    indices, values = table.column("indices").chunk(0), table.column("values").chunk(0)
    indptr = indices.offsets.to_numpy()
    W = csr(
        indptr,
        indices.values.to_numpy(),
        values.values.to_numpy(),
        int(table.schema.metadata[b"n_cols"]),
    )
    dtype = np.dtype(
        [(name, kind) for name, kind in json.loads(table.schema.metadata[b"records"])], align=True
    )
    records = np.zeros(table.num_rows, dtype)
    for name in dtype.names or ():
        records[name] = table.column(f"record.{name}").to_numpy()
    labels = frozen(table.column("label").to_numpy(), np.int32)
    return Block(labels, W, frozen(table.column("bias").to_numpy(), np.float64), records)
