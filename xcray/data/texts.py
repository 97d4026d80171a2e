"""Texts of the rows of a data set: what lexical candidates are found in when a ranker is fitted.

`train/texts.arrow` and `test/texts.arrow` have one string per row, and its id if the files have
ids, compressed, in batches. They are not part of the content hash, because the features already
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from xcray.arrays import Int64
from xcray.data.dataset import Dataset
from xcray.data.text.fields import SEPARATOR
from xcray.errors import InputError
from xcray.storage.arrow import read_table
from xcray.storage.atomic import sync_path

TEXTS: Final = "texts.arrow"
BATCH_TEXTS: Final = 1000
SCHEMA: Final = pa.schema({"text": pa.large_string()})
SCHEMA_WITH_IDS: Final = pa.schema({"text": pa.large_string(), "id": pa.large_string()})


class TextWriter:
    """Writer of the texts of one part, text by text. Memory: one batch.

    A context manager. Without a text there is no file. has_ids: whether rows have ids.
    """

    def __init__(self, path: Path, has_ids: bool = False) -> None:
        self._path = path
        self._schema = SCHEMA_WITH_IDS if has_ids else SCHEMA
        self._waiting: list[tuple[str, ...]] = []
        self._writer: Any = None
        self._files = ExitStack()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def add(self, text: str, id: str = "") -> None:
        """Append the text of the next row, and its id."""
        # lone surrogates, which no file can hold, are not part of any term
        self._waiting.append(
            tuple(
                each if each.isascii() else each.encode("utf-8", "ignore").decode()
                for each in (text, id)[: len(self._schema)]
            )
        )
        if len(self._waiting) == BATCH_TEXTS:
            self._flush()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the rest, durably."""
        with self._files:
            if kind is None and self._waiting:
                self._flush()
        if self._writer is not None:
            sync_path(self._path)

    def _flush(self) -> None:
        """Write the waiting texts as one batch."""
        if self._writer is None:
            self._path.parent.mkdir(exist_ok=True)
            sink = self._files.enter_context(pa.OSFile(str(self._path), "wb"))
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            self._writer = self._files.enter_context(
                pa.ipc.new_file(sink, self._schema, options=options)
            )
        columns = [
            pa.array(column, pa.large_string()) for column in zip(*self._waiting, strict=True)
        ]
        batch = pa.record_batch(columns, schema=self._schema)
        self._writer.write_batch(batch)
        self._waiting.clear()


def read_texts(data: Dataset, part: str) -> Iterator[list[str]]:
    """Yield the texts of a part in batches, in the order of its rows.

    Raises InputError if the data set was not built from texts, Corrupt.
    """
    if f"{part}/{TEXTS}" not in data.manifest["files"]:
        raise InputError(
            f"data set {data.name} has no texts of its {part} rows: build it from texts "
            "(jsonl, csv, tsv, fasttext, parquet)",
            code="NO_TEXT",
        )
    for batch in read_table(data.path / part / TEXTS).to_batches():
        yield batch.column(0).to_pylist()


def texts_at(data: Dataset, part: str, rows: Sequence[int]) -> list[str]:
    """Return the texts of a few rows, [] if the data set has none. Reads only their batches."""
    if f"{part}/{TEXTS}" not in data.manifest["files"]:
        return []
    with pa.memory_map(str(data.path / part / TEXTS)) as source:
        reader = pa.ipc.open_file(source)
        if reader.num_record_batches != -(-data[part].n_rows // BATCH_TEXTS):
            return []  # of another writer: rows are not in batches of BATCH_TEXTS
        batch = lru_cache(maxsize=1)(reader.get_batch)  # each call decompresses a whole batch
        return [batch(row // BATCH_TEXTS).column(0)[row % BATCH_TEXTS].as_py() for row in rows]


def texts_as(data: Dataset, part: str, fields: Sequence[str]) -> Iterator[str] | None:
    """Return the texts of a part as documents of these fields; None if the data set lacks one.

    Raises as `read_texts`.
    """
    own = data.text_fields
    texts = chain.from_iterable(read_texts(data, part))
    if own == tuple(fields):
        return texts
    if not set(fields) <= set(own):
        return None
    places = [own.index(field) for field in fields]
    values = (text.split(SEPARATOR) for text in texts)
    return (SEPARATOR.join(each[place] for place in places) for each in values)


def texts_of(data: Dataset, rows: Int64) -> Iterator[str]:
    """Yield the texts of training rows, which are ascending. Memory: one batch.

    Raises as `read_texts`.
    """
    wanted = np.zeros(data.train.n_rows, bool)
    wanted[rows] = True
    every = chain.from_iterable(read_texts(data, "train"))
    return (text for text, is_wanted in zip(every, wanted, strict=True) if is_wanted)


def read_ids(data: Dataset) -> list[str] | None:
    """Return the ids of the training rows; None if the files they were built from had none."""
    if f"train/{TEXTS}" not in data.manifest["files"]:
        return None
    table = read_table(data.path / "train" / TEXTS)
    return table.column("id").to_pylist() if "id" in table.column_names else None
