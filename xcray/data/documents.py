"""Building from documents: one pass learns terms and labels from the training part, held-out texts wait on disk."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Pattern, pattern
from xcray.data.dataset import Dataset
from xcray.data.readers.error_codes import mend
from xcray.data.readers.error_log import Tally
from xcray.data.readers.label_names import Names
from xcray.data.readers.records import Record
from xcray.data.splits import HashSplit
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.tokenizer import TextParams
from xcray.data.writer import DatasetWriter
from xcray.errors import DataError, excerpt

BATCH = 1000  # test documents turned into rows at once


class Built(NamedTuple):
    """Everything but the manifest."""

    writer: DatasetWriter
    pipeline: TextPipeline
    labels: list[str]

    def finish(self, source: dict[str, Any]) -> Dataset:
        """Publish, with the account of where the documents came from."""
        return self.writer.finish(
            label_names=self.labels,
            feature_names=self.pipeline.terms,
            text=self.pipeline,
            source=source,
        )


def build_documents(
    train: Iterable[Record],
    test: Iterable[Record] | None,
    writer: DatasetWriter,
    how: TextParams | TextPipeline,
    split: HashSplit,
    names: Names | None,
    tallies: Mapping[str, Tally],
) -> Built:
    """Write both parts. how: parameters of a pipeline to fit on the training part alone, or a fitted one. Errors as `build`."""
    labels, spool = _Labels(names), _Spool(writer.staged / "held_out.jsonl")
    tally = tallies["train"]

    def texts() -> Iterator[str]:
        for record in train:
            unknown = labels.unknown(record, tally.file)
            if unknown is not None:
                tally.n_rows -= 1
                tally.bad(unknown)
            elif split.held_out(record.id):
                spool.add(record)
            else:
                labels.add(record)
                yield record.text
        tally.close()
        if not labels.ids:
            problem = "no training document has a label; there is nothing to learn"
            raise DataError("NO_POSITIVES", problem, file=tally.file, hint=mend("NO_POSITIVES"))

    if isinstance(how, TextPipeline):
        pipeline, X = how, how.transform_stream(texts())
    else:
        pipeline, X = TextPipeline.fit_transform(texts(), how)
    ordered, Y = labels.finish()
    tally.warnings["rows_without_features"] += int(np.count_nonzero(np.diff(X.indptr) == 0))
    writer.add("train", X, Y)
    writer.widen(X.n_cols, Y.n_cols)
    ids = {name: k for k, name in enumerate(ordered)}
    for held_out, account in ((spool.records(), tally), (test, tallies.get("test", tally))):
        for batch in _batches(held_out or ()):
            rows = pipeline.transform([record.text for record in batch])
            account.warnings["test_rows_without_features"] += int(
                np.count_nonzero(np.diff(rows.indptr) == 0)
            )
            writer.add("test", rows, _known(batch, ids, account))
    spool.path.unlink(missing_ok=True)
    return Built(writer, pipeline, ordered)


class _Labels:
    """Labels of the training part, numbered as they come (or as a file names them)."""

    def __init__(self, names: Names | None) -> None:
        self.names = names
        self.number = {} if names is None else {name: k for k, name in enumerate(names.names)}
        self.ids = array("i")
        self.starts = array("q", [0])

    def unknown(self, record: Record, file: str | None) -> DataError | None:
        """The error for a document with a label that the file of names lacks."""
        if self.names is None or all(label in self.number for label in record.labels):
            return None
        label = next(label for label in record.labels if label not in self.number)
        problem = f"label '{excerpt(label)}' is not in {self.names.file}"
        return DataError(
            "LABEL_UNKNOWN",
            problem,
            file=file,
            line=record.line,
            row=record.row,
            value=label,
            hint="add it there",
        )

    def add(self, record: Record) -> None:
        """Append the label set of one document."""
        for label in record.labels:
            self.ids.append(self.number.setdefault(label, len(self.number)))
        self.starts.append(len(self.ids))

    def finish(self) -> tuple[list[str], Pattern]:
        """The names in their final order (the file's, or sorted; whole numbers by value), and the label sets."""
        names = list(self.number)
        if self.names is None:
            names.sort(key=label_order)
        place = {name: k for k, name in enumerate(names)}
        new = np.array([place[name] for name in self.number], np.int32)
        starts, ids = np.array(self.starts, np.int64), new[np.array(self.ids, np.int64)]
        row_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return names, pattern(starts, ids[np.lexsort((ids, row_of))], len(names))


class _Spool:
    """Held-out documents, on disk until the pipeline is fitted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: list[str] = []

    def add(self, record: Record) -> None:
        """Keep a document."""
        self.waiting.append(json.dumps([record.id, record.text, record.labels]) + "\n")
        if len(self.waiting) >= BATCH:
            self._flush()

    def records(self) -> Iterator[Record]:
        """The documents kept, in order."""
        self._flush()
        with open(self.path, encoding="ascii") as lines:
            for line in lines:
                id, text, labels = json.loads(line)
                yield Record(id, text, tuple(labels))

    def _flush(self) -> None:
        """Append what waits to the file."""
        with open(self.path, "a", encoding="ascii") as out:
            out.writelines(self.waiting)
        self.waiting.clear()


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Lists of up to BATCH records."""
    rest = iter(records)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _known(batch: list[Record], ids: Mapping[str, int], tally: Tally) -> Pattern:
    """Label sets of test documents; labels never seen in training are left out and counted."""
    rows = [sorted(ids[label] for label in record.labels if label in ids) for record in batch]
    tally.warnings["labels_unseen_in_train"] += sum(len(r.labels) for r in batch) - sum(
        map(len, rows)
    )
    starts = np.cumsum([0, *map(len, rows)])
    return pattern(starts, np.array([k for row in rows for k in row], np.int32), len(ids))


def label_order(name: str) -> tuple[int, int, str]:
    """Whole numbers by value, before names."""
    is_id = name.isascii() and name.isdigit() and len(name) <= 18
    return (0, int(name), name) if is_id else (1, 0, name)
