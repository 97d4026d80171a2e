"""Changed data sets from feedback: right and wrong labels of instances, see `POST .../feedback`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, csr, pattern
from xcray.data.dataset import FEATURES, Dataset
from xcray.data.delta.rows import make_delta
from xcray.data.text.fields import document
from xcray.data.texts import TEXTS, TextWriter, read_ids
from xcray.data.writer import DatasetWriter
from xcray.errors import InputError


class Correction(NamedTuple):
    """One entry. id: of a row of the base, or of a new one. instance: as of a predict request."""

    seq: int
    id: str
    instance: Mapping[str, Any]
    right: Sequence[str]
    wrong: Sequence[str]


def last_feedback(data: Dataset, model: str) -> int:
    """Return the number of the last entry of a model's feedback that a data set has, or 0."""
    return int(data.manifest["source"].get("feedback", {}).get(model, 0))


def delta_from_feedback(
    base: str | Path, out: str | Path, entries: Path, *, model: str, name: str | None = None
) -> Dataset:
    """Publish the data set `base` with the feedback of a model at `out`.

    entries: JSON lines with seq, id, instance, right, wrong. Rows of the base with the id get the
    right labels in addition, and lose the wrong ones. Others are added with the right labels; an
    entry without any is left out. The manifest records the last entry, see `last_feedback`. Raises
    InputError if nothing would change.
    """
    data = Dataset.open(base)
    with open(entries, encoding="utf-8") as lines:
        corrections = [Correction(**json.loads(line)) for line in lines]
    rows: dict[str, list[int]] = {}
    for row, id in enumerate(read_ids(data) or ()):
        rows.setdefault(id, []).append(row)
    names = data.label_names.to_pylist()
    relabel: dict[int, Sequence[str]] = {}
    for each in corrections:
        for row in rows.get(each.id, ()):
            before = {names[k] for k in data.train.Y.row(row)}
            after = (before | {*each.right}) - {*each.wrong}
            if after != before:
                relabel[row] = sorted(after)
    new = [each for each in corrections if each.id not in rows and each.right]
    had = data.manifest["source"].get("feedback", {})
    source = {"feedback": {**had, model: corrections[-1].seq}}
    with TemporaryDirectory(prefix=".xcray-", dir=Path(out).absolute().parent) as folder:
        added = _added_rows(data, Path(folder, "added"), new) if new else None
        return make_delta(data, out, add=added, relabel=relabel, name=name, source=source)


def _added_rows(base: Dataset, out: Path, corrections: Sequence[Correction]) -> Dataset:
    """Write a data set of new rows with the features of the base, and its labels first."""
    names = base.label_names.to_pylist()
    ids = {name: k for k, name in reversed(list(enumerate(names)))}
    for each in corrections:
        for label in each.right:
            if label not in ids:
                ids[label] = len(names)
                names.append(label)
    labels = [sorted({ids[label] for label in each.right}) for each in corrections]
    indptr = np.cumsum([0, *map(len, labels)])
    Y = pattern(indptr, np.array([k for row in labels for k in row], np.int32), len(names))
    documents = [_document(base, each.instance) for each in corrections]
    has_texts = f"train/{TEXTS}" in base.manifest["files"]
    with DatasetWriter(out, name="added") as writer:
        writer.set_widths(base.n_features, len(names))
        writer.add("train", _rows(base, corrections, documents), Y)
        if has_texts:
            path = writer.staged / "train" / TEXTS
            path.parent.mkdir(exist_ok=True)
            with TextWriter(path, read_ids(base) is not None) as texts:
                for each, text in zip(corrections, documents, strict=True):
                    texts.add(text or "", each.id)
        return writer.finish(
            label_names=pa.array(names, pa.large_string()),
            feature_names=base.feature_names.array if (base.path / FEATURES).exists() else None,
            text=base.text,
            source={"format": "feedback"},
        )


def _document(base: Dataset, instance: Mapping[str, Any]) -> str | None:
    """Return the text of an instance, or None for a row."""
    if "fields" in instance:
        return document(instance["fields"], base.text_fields)
    return instance.get("text")


def _rows(base: Dataset, corrections: Sequence[Correction], documents: Sequence[str | None]) -> CSR:
    """Return the features of the instances. Raises InputError if they do not fit the base."""
    pieces: list[tuple[np.ndarray, np.ndarray]] = []
    for each, text in zip(corrections, documents, strict=True):
        if text is not None:
            if base.text is None:
                raise InputError(f"the base was not built from texts, feedback {each.id} is one")
            pieces.append(base.text.transform([text]).row(0))
            continue
        values = np.array(each.instance["values"], np.float32)
        indices = np.array(each.instance.get("indices", np.arange(len(values))), np.int64)
        if len(indices) and indices.max() >= base.n_features:
            raise InputError(f"feedback {each.id} has more features than the base")
        order = np.argsort(indices)
        order = order[values[order] != 0]
        pieces.append((indices[order].astype(np.int32), values[order]))
    indptr = np.concatenate([[0], np.cumsum([len(indices) for indices, _ in pieces])])
    indices, values = (np.concatenate(each) for each in zip(*pieces, strict=True))
    return csr(indptr, indices, values, base.n_features)
