"""Building from documents: one pass fits terms and labels on the training part.

Held-out texts wait on disk until the pipeline is fitted.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import Pattern, pattern
from xcray.data.dataset import Dataset
from xcray.data.label_texts import open_label_texts, set_label_texts
from xcray.data.readers.error_codes import default_fix
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.label_names import LabelNames, label_order, unknown_label_hint
from xcray.data.readers.records import Record
from xcray.data.splits import HashSplit
from xcray.data.text.pipeline import TextPipeline, count_empty_rows
from xcray.data.text.tokenizer import TextParams
from xcray.data.texts import TEXTS, TextWriter, read_texts
from xcray.data.writer import DatasetWriter
from xcray.errors import DataError, excerpt

BATCH_DOCUMENTS = 1000  # test documents transformed at once


class UnpublishedDataset(NamedTuple):
    """A data set that lacks only its manifest."""

    writer: DatasetWriter
    pipeline: TextPipeline
    labels: list[str]
    unseen: array[int]

    def publish(self, source: dict[str, Any]) -> Dataset:
        """Publish the data set. source: origin of the documents, for the manifest."""
        return self.writer.finish(
            label_names=self.labels,
            feature_names=self.pipeline.names,
            text=self.pipeline,
            unseen=self.unseen,
            source=source,
        )


def build_documents(
    train: Iterable[Record],
    test: Iterable[Record] | None,
    writer: DatasetWriter,
    features: TextParams | TextPipeline,
    split: HashSplit,
    names: LabelNames | None,
    collectors: Mapping[str, ErrorCollector],
    *,
    label_ids: bool = False,
    has_ids: bool = False,
) -> UnpublishedDataset:
    """Write both parts of a data set of documents.

    features: parameters of a pipeline to fit on the training part alone, or a fitted pipeline.
    label_ids: whether labels are positions in the names file. has_ids: whether the ids are those of
    the documents, not row numbers: they are kept. Raises errors as `build`.
    """
    labels, spool = _LabelNumbering(names, label_ids), _Spool(writer.staged / "held_out.jsonl")
    collector = collectors["train"]

    def texts(copy: TextWriter) -> Iterator[str]:
        for record in train:
            unknown = labels.unknown_label_error(record, collector.file)
            if unknown is not None:
                collector.n_rows -= 1
                collector.add(unknown)
            elif split.is_held_out(record.id):
                spool.add(record)
            else:
                labels.add(record)
                copy.add(record.text, record.id)
                yield record.text
        collector.raise_errors()
        if not labels.ids:
            problem = "no training document has a label; there is nothing to learn"
            raise DataError(
                "NO_POSITIVES", problem, file=collector.file, hint=default_fix("NO_POSITIVES")
            )

    with TextWriter(writer.staged / "train" / TEXTS, has_ids) as copy:
        if isinstance(features, TextPipeline):
            pipeline, X = features, features.transform(texts(copy))
        else:
            pipeline, X = TextPipeline.fit_transform(texts(copy), features)
    ordered, Y = labels.finish()
    collector.warnings["rows_without_features"] += count_empty_rows(X)
    writer.add("train", X, Y)
    writer.set_widths(X.n_cols, Y.n_cols)
    unpublished = UnpublishedDataset(writer, pipeline, ordered, array("q"))
    with TextWriter(writer.staged / "test" / TEXTS) as copy:
        _add_test_rows(unpublished, labels.number, spool.records(), collector, copy)
        _add_test_rows(
            unpublished, labels.number, test or (), collectors.get("test", collector), copy
        )
    spool.path.unlink(missing_ok=True)
    return unpublished


def keeps_texts(data: Dataset) -> bool:
    """Return whether a data set was built from texts, and has those of all its rows."""
    return data.text is not None and all(f"{part}/{TEXTS}" in data.files for part in data.splits)


def rebuild(data: Dataset, params: TextParams, path: Path) -> Dataset:
    """Return a data set of the same rows and labels at `path`, whose features are fitted again.

    Texts, label texts, weights and the way to read other files are those of `data`, so it is as if
    it had been built with `params`. Raises Conflict if `path` exists, InputError without texts.
    """
    with DatasetWriter(path, name=data.name, n_labels=data.n_labels) as writer:

        def copied(part: str, copy: TextWriter) -> Iterator[str]:
            for text in chain.from_iterable(read_texts(data, part)):
                copy.add(text)
                yield text

        with TextWriter(writer.staged / "train" / TEXTS) as copy:
            pipeline, X = TextPipeline.fit_transform(copied("train", copy), params)
        writer.add("train", X, data.train.Y)
        writer.set_widths(X.n_cols, data.n_labels)
        if data.test is not None:
            with TextWriter(writer.staged / "test" / TEXTS) as copy:
                writer.add("test", pipeline.transform(copied("test", copy)), data.test.Y)
        origin = {"content_hash": data.content_hash, "text": asdict(params)}
        out = writer.finish(
            source={**data.manifest["source"], "rebuilt": origin},
            label_names=data.label_names.array,
            feature_names=pipeline.names,
            text=pipeline,
            weights=data.train.weights,
            unseen=None if data.test is None else data.test.unseen,
        )
    texts = open_label_texts(data)
    return out if texts is None else set_label_texts(out, texts)


def _add_test_rows(
    unpublished: UnpublishedDataset,
    ids: Mapping[str, int],
    records: Iterable[Record],
    collector: ErrorCollector,
    copy: TextWriter,
) -> None:
    """Write held-out documents and their texts, and count their labels without training rows."""
    for batch in _batches(records):
        rows = unpublished.pipeline.transform([record.text for record in batch])
        for record in batch:
            copy.add(record.text)
        collector.warnings["test_rows_without_features"] += count_empty_rows(rows)
        unpublished.writer.add("test", rows, _known_labels(batch, ids, len(unpublished.labels)))
        unknown = [sum(each not in ids for each in record.labels) for record in batch]
        unpublished.unseen.extend(unknown)
        collector.warnings["labels_unseen_in_train"] += sum(unknown)


class _LabelNumbering:
    """Label numbers of the training part, in order of occurrence or as a names file gives them."""

    def __init__(self, names: LabelNames | None, label_ids: bool) -> None:
        self.names = names
        self.number = {} if names is None else names.ids(label_ids)
        self.ids = array("i")
        self.starts = array("q", [0])

    def unknown_label_error(self, record: Record, file: str | None) -> DataError | None:
        """Return the error for a label that the names file lacks, or None."""
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
            hint=unknown_label_hint(label, self.names),
        )

    def add(self, record: Record) -> None:
        """Append the label set of one document."""
        for k in dict.fromkeys(
            self.number.setdefault(label, len(self.number)) for label in record.labels
        ):
            self.ids.append(k)
        self.starts.append(len(self.ids))

    def finish(self) -> tuple[list[str], Pattern]:
        """Return the names in their final order, and the label sets.

        The order is that of the names file. Without one, names are sorted, and whole
        numbers come first by value.
        """
        starts, ids = np.array(self.starts, np.int64), np.array(self.ids, np.int32)
        if self.names is None:
            names = sorted(self.number, key=label_order)
            place = {name: k for k, name in enumerate(names)}
            ids = np.array([place[name] for name in self.number], np.int32)[ids]
            self.number = place
        else:
            names = self.names.names
        row_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        return names, pattern(starts, ids[np.lexsort((ids, row_of))], len(names))


class _Spool:
    """Held-out documents, on disk until the pipeline is fitted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: list[str] = []

    def add(self, record: Record) -> None:
        """Append a document."""
        self.waiting.append(json.dumps([record.id, record.text, record.labels]) + "\n")
        if len(self.waiting) >= BATCH_DOCUMENTS:
            self._flush()

    def records(self) -> Iterator[Record]:
        """Yield the documents in order."""
        self._flush()
        with open(self.path, encoding="ascii") as lines:
            for line in lines:
                id, text, labels = json.loads(line)
                yield Record(id, text, tuple(labels))

    def _flush(self) -> None:
        """Append the waiting documents to the file."""
        with open(self.path, "a", encoding="ascii") as out:
            out.writelines(self.waiting)
        self.waiting.clear()


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield lists of up to BATCH_DOCUMENTS records."""
    rest = iter(records)
    while batch := list(islice(rest, BATCH_DOCUMENTS)):
        yield batch


def _known_labels(batch: list[Record], ids: Mapping[str, int], n_labels: int) -> Pattern:
    """Return label sets of test documents, without labels that do not occur in training."""
    rows = [sorted({ids[label] for label in record.labels if label in ids}) for record in batch]
    starts = np.cumsum([0, *map(len, rows)])
    return pattern(starts, np.array([k for row in rows for k in row], np.int32), n_labels)
