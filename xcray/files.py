"""Durable files: written aside, synced, renamed; matrices as Arrow; checksums. Never a pickle.

A reader sees the old file or the new one, whole. A directory is published by one rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Pattern, csr, pattern
from xcray.errors import Conflict, Corrupt, NotFound, ParameterError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
RESERVED = re.compile(r"con|prn|aux|nul|com\d|lpt\d")  # names that some file systems keep for devices


def check_name(name: str, what: str = "name") -> str:
    """`name` itself when it is a safe name; ParameterError with the rule when not. Names are data, never paths."""
    if not NAME.fullmatch(name) or name.endswith(".") or ".." in name or RESERVED.fullmatch(name.split(".")[0]):
        raise ParameterError(
            f"{what} {name[:80]!r} is not allowed: use 1 to 64 of a-z 0-9 . _ -, starting with a letter or digit", code="BAD_NAME"
        )
    return name


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file aside, sync it, rename it into place and sync the directory."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open(aside, "xb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
        sync_directory(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON durably: sorted keys, readable, final newline. Raises ValueError on NaN and infinity."""
    write_bytes(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON. Raises NotFound when there is no such file and Corrupt when it is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"there is no {path.name} in {path.parent.name}") from None
    except ValueError as error:
        raise Corrupt(f"{path.name} is not readable JSON: {error}") from None


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal; reads it in one pass without holding it."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_arrays(arrays: Mapping[str, Any]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of arrays and strings, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        value = arrays[name]
        if isinstance(value, str):
            value = np.frombuffer(value.encode(), np.uint8)
        array = np.ascontiguousarray(value)
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.view(np.uint8).reshape(-1).data if array.size else b"")
    return digest.hexdigest()


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table durably as an uncompressed Arrow IPC file of one record batch, which a memory map reads in place."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with pa.OSFile(str(aside), "wb") as sink:
            with pa.ipc.new_file(sink, table.schema) as writer:
                for batch in table.combine_chunks().to_batches():
                    writer.write_batch(batch)
        with open(aside, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(aside, path)
        sync_directory(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def read_table(path: Path) -> pa.Table:
    """Map an Arrow IPC file; nothing is copied. Raises NotFound, or Corrupt when it is not Arrow."""
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except FileNotFoundError:
        raise NotFound(f"there is no {path.name} in {path.parent.name}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"{path.name} is not a readable Arrow file: {type(error).__name__}") from None


def write_matrix(path: Path, matrix: CSR | Pattern) -> None:
    """Write a CSR as rows of `indices` and `values` lists, or a Pattern as rows of `indices` lists; any Arrow tool reads them."""
    offsets = pa.array(matrix.indptr)
    columns = {"indices": pa.LargeListArray.from_arrays(offsets, pa.array(matrix.indices))}
    if isinstance(matrix, CSR):
        columns["values"] = pa.LargeListArray.from_arrays(offsets, pa.array(matrix.data))
    table = pa.table(columns).replace_schema_metadata({"n_cols": str(matrix.n_cols)})
    write_table(path, table)


def read_csr(path: Path) -> CSR:
    """Map a CSR written by `write_matrix`; arrays are views of the file. Raises NotFound or Corrupt."""
    table, indptr, indices = _rows(path)
    values = _only_chunk(table, "values").values.to_numpy() if table.num_rows else np.empty(0, np.float32)
    return csr(indptr, indices, values, _n_cols(path, table))


def read_pattern(path: Path) -> Pattern:
    """Map a Pattern written by `write_matrix`; arrays are views of the file. Raises NotFound or Corrupt."""
    table, indptr, indices = _rows(path)
    return pattern(indptr, indices, _n_cols(path, table))


def _rows(path: Path) -> tuple[pa.Table, Any, Any]:
    """The mapped table with the offsets and indices of its rows."""
    table = read_table(path)
    if "indices" not in table.column_names:
        raise Corrupt(f"{path.name} has no column 'indices'; it holds {table.column_names}")
    if not table.num_rows:
        return table, np.zeros(1, np.int64), np.empty(0, np.int32)
    rows = _only_chunk(table, "indices")
    return table, rows.offsets.to_numpy(), rows.values.to_numpy()


def _only_chunk(table: pa.Table, column: str) -> Any:
    """The single chunk of a column."""
    chunks = table.column(column)
    if chunks.num_chunks != 1:
        raise Corrupt(f"column {column!r} has {chunks.num_chunks} chunks where one was written")
    return chunks.chunk(0)


def _n_cols(path: Path, table: pa.Table) -> int:
    """The number of columns kept in the schema's metadata."""
    try:
        return int(table.schema.metadata[b"n_cols"])
    except (TypeError, KeyError, ValueError):
        raise Corrupt(f"{path.name} does not say how many columns it has") from None


def write_names(path: Path, names: Iterable[str]) -> None:
    """Write a table of names, one row each, in order."""
    write_table(path, pa.table({"name": pa.array(list(names), pa.large_string())}))


def read_names(path: Path) -> pa.LargeStringArray:
    """Map a table of names; `names[i].as_py()` is the i-th. Raises NotFound or Corrupt."""
    column = read_table(path).column("name")
    return column.chunk(0) if column.num_chunks else pa.array([], pa.large_string())


def file_digests(directory: Path, skip: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Size in bytes and SHA-256 of every file below `directory` (relative posix names), but for those named in `skip`."""
    left_out = set(skip)
    out = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        name = path.relative_to(directory).as_posix()
        if name not in left_out:
            out[name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    return out


def verify_files(directory: Path, digests: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare files with their recorded sizes and checksums. Raises Corrupt naming the first file that differs."""
    for name, expected in digests.items():
        path = directory / name
        if not path.is_file():
            raise Corrupt(f"{directory.name}: file {name} is missing", file=name)
        if path.stat().st_size != expected["bytes"] or sha256_file(path) != expected["sha256"]:
            raise Corrupt(f"{directory.name}: file {name} is not what was written (its checksum differs)", file=name)


def publish_directory(staged: Path, target: Path) -> None:
    """Rename a finished directory into place, durably. Raises Conflict when `target` exists: published things never change."""
    for path in staged.rglob("*"):
        if path.is_dir():
            sync_directory(path)
    sync_directory(staged)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(staged, target)
    except OSError as error:
        if target.exists():
            raise Conflict(f"{target.name} exists already; choose another name or remove it first") from error
        raise
    sync_directory(target.parent)


def staging_directory(target: Path) -> Path:
    """A fresh, hidden directory beside `target`, for `publish_directory` or `discard_directory`."""
    staged = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.part"
    staged.mkdir(parents=True)
    return staged


def discard_directory(staged: Path) -> None:
    """Remove a staging directory that will not be published."""
    shutil.rmtree(staged, ignore_errors=True)
