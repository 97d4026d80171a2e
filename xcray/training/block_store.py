"""Committed blocks of finished labels on disk, one file per write.

Files are staged, synced, renamed, named by their content, and read again on resume. Blocks that
finish shortly after each other share a file, so that the number of files and syncs depends on the
length of a run and not on its workers. The file has the digest of each block, which its worker
computed, and is named by the hash of these digests. In memory a finished label takes 16 bytes, for
any number of weights. At the end the parts are merged into one file, a range of labels at a time.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Int32, Int64, csr, frozen
from xcray.errors import Conflict, Corrupt, XcrayError
from xcray.index.packed import BUFFER_BYTES, ENTRY_BYTES, row_ranges
from xcray.kernels.merge import copy_rows
from xcray.solvers.solved_labels import SolvedLabels, row_offsets, untrained_records
from xcray.storage.arrow import MatrixWriter, read_csr, read_table, write_table
from xcray.storage.atomic import read_json, write_json

# A block waits for others until the last write is this long ago, the larger of a number of seconds
# and a share of the run's time. A kill costs that and the batches in progress.
SYNC_SECONDS: Final = 0.5
SYNC_SHARE: Final = 1 / 200
PENDING_BYTES: Final = 32 << 20  # of waiting blocks, from which they are written at once


class BlockStore:
    """The committed blocks of one run, in `directory`.

    fingerprint: identity of the run (data, solver, parameters). Existing parts are checked
    against their digests and names. A damaged part is set aside and its labels are solved again.
    damaged: names of the parts that were set aside. Raises Conflict if the directory belongs to
    another run.
    """

    def __init__(
        self, directory: Path, fingerprint: Mapping[str, Any], *, n_labels: int, n_features: int
    ) -> None:
        self._directory = directory
        self._n_labels = n_labels
        self._n_features = n_features
        directory.mkdir(parents=True, exist_ok=True)
        claim_directory(directory, fingerprint)
        self._names: list[str] = []
        self._part = np.full(n_labels, -1, np.int32)  # index of the part that holds a label
        self._row = np.zeros(n_labels, np.int32)  # its row there
        self._length = np.zeros(n_labels, np.int64)  # number of its weights
        self._pending: list[SolvedLabels] = []
        self._pending_bytes = 0
        self._opened = self._written = time.monotonic()
        self.damaged: list[str] = []
        for left in directory.glob(".part-*.part"):  # of a process that died while it wrote
            left.unlink(missing_ok=True)
        for path in sorted(directory.glob("part-*.arrow")):
            self._adopt(path)

    @property
    def missing(self) -> np.ndarray:
        """Labels that no part holds, ascending, int32."""
        return np.flatnonzero(self._part < 0).astype(np.int32)

    @property
    def lengths(self) -> Int64:
        """Number of weights of each label, 0 for unfinished ones: (K,) int64."""
        return self._length

    def add(self, block: SolvedLabels) -> None:
        """Add a block to the next write, see `sync`; at once if its worker has written its part."""
        if block.part:
            self._index_part(block.part, block.labels, np.diff(block.W.indptr))
            return
        self._pending.append(block)
        self._pending_bytes += ENTRY_BYTES * block.W.nnz

    def sync(self, *, at_once: bool = True) -> None:
        """Write all added blocks as one part; not at_once: only if a write is due."""
        now = time.monotonic()
        wait = 0.0 if at_once else max(SYNC_SECONDS, SYNC_SHARE * (now - self._opened))
        due = now - self._written >= wait or self._pending_bytes >= PENDING_BYTES
        if self._pending and due:
            self.commit(*self._pending)
            self._pending.clear()
            self._pending_bytes, self._written = 0, time.monotonic()

    def commit(self, *blocks: SolvedLabels) -> None:
        """Write blocks durably as one part; no crash loses them after the return."""
        labels = np.concatenate([block.labels for block in blocks])
        lengths = np.diff(row_offsets([block.W for block in blocks]))
        self._index_part(write_part(self._directory, blocks), frozen(labels, np.int32), lengths)

    def clear(self) -> None:
        """Remove all parts, because all labels are trained again."""
        for name in self._names:
            (self._directory / name).unlink(missing_ok=True)
        self._names.clear()
        self._pending.clear()
        self._pending_bytes = 0
        self._part[:], self._row[:], self._length[:] = -1, 0, 0

    def merge(
        self,
        path: Path,
        *,
        budget: int = BUFFER_BYTES,
        allow_missing: bool = False,
        positives: Any = None,
        tick: Callable[[], None] = lambda: None,
        labels: range | None = None,
    ) -> SolvedLabels:
        """Merge all labels into one block, with the weights mapped from the matrix file `path`.

        budget: bytes of weights in memory at once, in addition to the records and 32 bytes per
        label; the file does not depend on it. allow_missing: labels that no part holds get no
        weights, bias -1 and an untrained record, with `positives` (K,), their rows in training.
        tick: called after each range of labels. labels: only those of this range; the result
        numbers them from 0. Raises ValueError with the first missing label unless they are allowed,
        and Corrupt if a part was changed.
        """
        chosen = range(self._n_labels) if labels is None else labels
        missing = self.missing
        missing = missing[(missing >= chosen.start) & (missing < chosen.stop)]
        if len(missing) and not allow_missing:
            raise ValueError(f"label {int(missing[0])} is in no part")
        lengths = self._length[chosen.start : chosen.stop]
        self._merge_matrix(path, chosen, lengths, self._n_features, read_csr, budget, tick)
        bias, records = self._columns(missing, positives)
        numbers = np.arange(len(chosen), dtype=np.int32)
        first, stop = chosen.start, chosen.stop
        return SolvedLabels(numbers, read_csr(path), bias[first:stop], records[first:stop])

    def merge_duals(self, path: Path, n_rows: int, budget: int = BUFFER_BYTES) -> dict[str, int]:
        """Merge the dual variables (K, n_rows) of all labels into the matrix file `path`.

        Returns their number and the bytes of the file. Labels that no part holds have none. Raises
        Corrupt if a part was changed or has none.
        """
        chosen, lengths = range(self._n_labels), np.zeros(self._n_labels, np.int64)
        for own, part in self._parts_of(0, self._n_labels):
            lengths[own] = np.diff(_read_duals(self._directory / part).indptr)[self._row[own]]
        self._merge_matrix(path, chosen, lengths, n_rows, _read_duals, budget, lambda: None)
        return {"entries": int(lengths.sum()), "bytes": path.stat().st_size}

    def _merge_matrix(
        self,
        path: Path,
        chosen: range,
        lengths: Int64,
        n_cols: int,
        read: Callable[[Path], CSR],
        budget: int,
        tick: Callable[[], None],
    ) -> None:
        """Write rows of `lengths` of the chosen labels, which `read` finds in parts, to a file."""
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        with MatrixWriter(path, indptr, n_cols) as out:
            for first, stop in row_ranges(indptr, budget // ENTRY_BYTES):
                n = int(indptr[stop] - indptr[first])
                indices, values = np.empty(n, np.int32), np.empty(n, np.float32)
                for own, part in self._parts_of(chosen.start + first, chosen.start + stop):
                    matrix, rows = read(self._directory / part), self._row[own].astype(np.int64)
                    places = own - chosen.start
                    if matrix.n_rows <= rows.max() or not np.array_equal(
                        np.diff(matrix.indptr)[rows], lengths[places]
                    ):
                        raise _changed_part(part)
                    copy_rows(
                        matrix,
                        frozen(rows, np.int64),
                        frozen(indptr[places] - indptr[first], np.int64),
                        indices,
                        values,
                    )
                out.write(int(indptr[first]), indices, values)
                tick()

    def _parts_of(self, first: int, stop: int) -> Iterator[tuple[Int64, str]]:
        """Yield (labels (n,), part name) for labels in [first, stop), each part once."""
        part = self._part[first:stop]
        order = np.argsort(part, kind="stable")
        present = order[np.searchsorted(part[order], 0) :]
        for labels in np.split(present, np.flatnonzero(np.diff(part[present])) + 1):
            if len(labels):
                yield labels + first, self._names[part[labels[0]]]

    def _columns(self, missing: Any, positives: Any) -> tuple[Any, Any]:
        """Return biases and records of all labels."""
        bias, records = np.empty(self._n_labels), None
        for labels, part in self._parts_of(0, self._n_labels):
            block, rows = _read_block(self._directory / part), self._row[labels]
            if not np.array_equal(block.labels[rows], labels):
                raise _changed_part(part)
            if records is None:
                records = np.empty(self._n_labels, block.records.dtype)
            bias[labels], records[labels] = block.bias[rows], block.records[rows]
        records = untrained_records(np.arange(self._n_labels)) if records is None else records
        if len(missing):
            bias[missing] = -1.0
            records[missing] = untrained_records(missing, positives, records.dtype)
        return frozen(bias, np.float64), records

    def _adopt(self, path: Path) -> None:
        """Add a part of an earlier attempt, or set it aside if its content and name differ."""
        try:
            block = _read_block(path)
            valid = (
                _part_name(_checked_digests(path, block)) == path.name
                and 0 <= block.labels.min()
                and block.labels.max() < self._n_labels
            )
        except (XcrayError, KeyError, TypeError, ValueError, pa.ArrowException):
            valid = False
        if valid and block.W.n_cols == self._n_features:
            self._index_part(path.name, block.labels, np.diff(block.W.indptr))
        else:
            path.rename(path.with_suffix(".damaged"))
            self.damaged.append(path.name)

    def _index_part(self, name: str, labels: Int32, lengths: Int64) -> None:
        """Record where the labels (n,) of a part are, except those that an earlier part holds."""
        new = self._part[labels] < 0
        labels = labels[new]
        self._part[labels], self._row[labels], self._length[labels] = (
            len(self._names),
            np.flatnonzero(new),
            lengths[new],
        )
        self._names.append(name)


def write_part(directory: Path, blocks: Sequence[SolvedLabels]) -> str:
    """Write blocks durably as one part, and return its name."""
    digests = [(len(block.labels), block.checksum or block.digest()) for block in blocks]
    name = _part_name(digests)
    write_table(directory / name, _table(blocks, digests), _lists(blocks))
    return name


def claim_directory(directory: Path, fingerprint: Mapping[str, Any]) -> None:
    """Write a run's fingerprint (JSON) into its directory, or compare it with the existing one.

    Raises Conflict if it is another one.
    """
    path, expected = directory / "run.json", json.loads(json.dumps(dict(fingerprint)))
    if not path.exists():
        write_json(path, expected)
        return
    existing = read_json(path)
    if existing != expected:
        changed = sorted(k for k in {*existing, *expected} if existing.get(k) != expected.get(k))
        fix = "choose a new one, or repeat its settings"
        if changed == ["revision"]:
            fix = (
                "it was started by an xcray with another revision of the solver; choose a new "
                "one, which trains all labels, or continue this one with that xcray"
            )
        raise Conflict(f"the run directory holds another run (other {', '.join(changed)}); {fix}")


def _changed_part(part: str) -> Corrupt:
    """Return the error for a part that was changed after its commit.

    Opening the run again checks it.
    """
    return Corrupt(
        f"part file {part} was changed during the run; run the training again",
        file=part,
    )


def _part_name(digests: Sequence[tuple[int, str]]) -> str:
    """Return the name of a part whose blocks have these numbers of labels and digests."""
    return f"part-{hashlib.sha256(repr(digests).encode()).hexdigest()[:32]}.arrow"


def _checked_digests(path: Path, part: SolvedLabels) -> list[tuple[int, str]]:
    """Return the numbers of labels and the digests of a part's blocks.

    Raises Corrupt if the content of a block has another digest.
    """
    metadata = read_table(path).schema.metadata[b"blocks"]
    digests = [(int(n), str(digest)) for n, digest in json.loads(metadata)]
    stops = np.cumsum([n for n, _ in digests]).tolist()
    if stops[-1:] != [len(part.labels)] or any(
        part.rows(stop - n, stop).digest() != digest
        for stop, (n, digest) in zip(stops, digests, strict=True)
    ):
        raise Corrupt(f"{path.name} has other content than was written", file=path.name)
    return digests


def _table(blocks: Sequence[SolvedLabels], digests: Sequence[tuple[int, str]]) -> pa.Table:
    """Return the labels, biases and records of blocks as a table with one row per label."""
    labels = np.concatenate([block.labels for block in blocks])
    bias = np.concatenate([block.bias for block in blocks])
    # numpy.concatenate takes 0.2 ms to compare the fields of two blocks
    content = b"".join(block.records.tobytes() for block in blocks)
    records = np.frombuffer(content, blocks[0].records.dtype)
    columns = {"label": pa.array(labels), "bias": pa.array(bias)}
    fields = records.dtype.names or ()
    columns |= {f"record.{n}": pa.array(np.ascontiguousarray(records[n])) for n in fields}
    metadata = {
        "n_cols": str(blocks[0].W.n_cols),
        "records": json.dumps([[name, records.dtype[name].str] for name in fields]),
        "blocks": json.dumps(digests),
    }
    if blocks[0].duals is not None:
        metadata["n_rows"] = str(blocks[0].duals.n_cols)
    return pa.table(columns).replace_schema_metadata(metadata)


def _lists(blocks: Sequence[SolvedLabels]) -> dict[str, tuple[Int64, list[Any]]]:
    """Return weights of blocks, and their dual variables if there are any, for `write_table`."""
    named = {("indices", "values"): [block.W for block in blocks]}
    if blocks[0].duals is not None:
        named["samples", "duals"] = [block.duals for block in blocks if block.duals is not None]
    lists = dict[str, tuple[Int64, list[Any]]]()
    for (indices, values), matrices in named.items():
        offsets = row_offsets(matrices)
        lists[indices] = offsets, [each.indices[: each.nnz] for each in matrices]
        lists[values] = offsets, [each.data[: each.nnz] for each in matrices]
    return lists


def _read_duals(path: Path) -> CSR:
    """Map the dual variables of a part's labels. Raises Corrupt if it has none."""
    table = read_table(path)
    if "duals" not in table.column_names:
        raise Corrupt(f"{path.name} has no dual variables", file=path.name)
    return _list_matrix(table, "samples", "duals", b"n_rows")


def _list_matrix(table: pa.Table, indices: str, values: str, n_cols: bytes) -> CSR:
    """Return two list columns of one batch, and the width in the metadata, as a matrix."""
    lists, data = table.column(indices).chunk(0), table.column(values).chunk(0)
    return csr(
        lists.offsets.to_numpy(),
        lists.values.to_numpy(),
        data.values.to_numpy(),
        int(table.schema.metadata[n_cols]),
    )


def _read_block(path: Path) -> SolvedLabels:
    """Map a block from its part file.

    Raises Corrupt, or KeyError and ValueError for a table of another kind.
    """
    table = read_table(path)
    if table.num_rows == 0 or any(column.num_chunks != 1 for column in table.columns):
        raise Corrupt(f"{path.name} does not hold one batch of labels")
    W = _list_matrix(table, "indices", "values", b"n_cols")
    duals = (
        _list_matrix(table, "samples", "duals", b"n_rows")
        if "duals" in table.column_names
        else None
    )
    dtype = np.dtype(
        [(name, kind) for name, kind in json.loads(table.schema.metadata[b"records"])], align=True
    )
    records = np.zeros(table.num_rows, dtype)
    for name in dtype.names or ():
        records[name] = table.column(f"record.{name}").to_numpy()
    labels = frozen(table.column("label").to_numpy(), np.int32)
    bias = frozen(table.column("bias").to_numpy(), np.float64)
    return SolvedLabels(labels, W, bias, records, duals)
