"""Changed data sets: the rows of a base, with training rows removed, relabelled and added.

The result is a data set like any other, with the features of the base and its held-out rows. It
also knows where its training rows come from, so that a model of the base can be updated:

train/origin.arrow      the row of the base that each training row was, -1 for added ones
train/relabelled.arrow  pairs of row and label whose membership changed

Kept rows are in the order of the base, added rows after them; labels of the base keep their
numbers, new ones come after them. So the content hash is that of the same rows built in one go.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import Float32, Int64, Pattern, distinct, frozen, pattern
from xcray.data.dataset import FEATURES, LABEL_TEXTS, Dataset, Split, default_names
from xcray.data.text.pipeline import TextPipeline
from xcray.data.texts import TEXTS, TextWriter, read_ids, read_texts, texts_of
from xcray.data.writer import DatasetWriter, name_of
from xcray.errors import InputError, NotFound, ParameterError
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.storage.arrow import read_table, write_table

ORIGIN: Final = "train/origin.arrow"
RELABELLED: Final = "train/relabelled.arrow"
CHUNK_ROWS: Final = 1 << 16


class Lineage(NamedTuple):
    """Where the training rows of a changed data set come from.

    base: content hash of the data set before the change. base_rows, base_labels: its sizes. origin:
    (N,) int64, the row of the base, -1 for added rows, which are the last ones. relabelled: (n, 2)
    int64, pairs of a row and a label whose membership changed.
    """

    base: str
    base_rows: int
    base_labels: int
    origin: Int64
    relabelled: Int64

    @property
    def n_kept(self) -> int:
        """Number of rows of the base that are still there."""
        return int((self.origin >= 0).sum())


def read_lineage(data: Dataset) -> Lineage | None:
    """Return the lineage of a data set that `make_delta` has written, else None."""
    entry = data.manifest["source"].get("delta")
    if entry is None:
        return None
    pairs = read_table(data.path / RELABELLED)
    return Lineage(
        entry["base"],
        entry["base_rows"],
        entry["base_labels"],
        frozen(read_table(data.path / ORIGIN).column("row").to_numpy(), np.int64),
        frozen(np.stack([pairs.column(name).to_numpy() for name in ("row", "label")], 1), np.int64),
    )


def make_delta(
    base: Dataset,
    out: str | Path,
    *,
    add: Dataset | None = None,
    remove: Iterable[int] = (),
    relabel: Mapping[int, Sequence[str]] | None = None,
    name: str | None = None,
    source: Mapping[str, Any] | None = None,
) -> Dataset:
    """Publish the data set `base` with changed training rows at `out`.

    add: a data set with the features of the base, whose training rows are added; its labels are
    matched by name. remove: training rows of the base, from 0. relabel: the new labels of some of
    its rows, by name. Names that the base does not have become new labels. name: of the data set;
    by default that of the directory. source: more about the origin. Raises InputError for a row
    that is named twice or if nothing would change, NotFound for a row that does not exist,
    ParameterError for other features, Conflict if `out` exists.
    """
    relabel = dict(relabel or {})
    removed = _check_rows(base, list(remove), relabel)
    if add is None and not len(removed) and not relabel:
        raise InputError("nothing would change: give rows to add, to remove or to relabel")
    if add is not None:
        _check_features(base, add)
    names, added_labels = _number_labels(base, add, relabel)
    remaining = np.setdiff1d(np.arange(base.train.n_rows), removed)
    Y, pairs = _relabelled(base.train.Y, relabel, names, remaining)
    with DatasetWriter(Path(out), name=name or name_of(Path(out).name)) as writer:
        writer.set_widths(base.n_features, len(names))
        for rows in _chunks(remaining):
            writer.add("train", take_rows(base.train.X, rows), take_pattern_rows(Y, rows))
        if add is not None:
            for rows in _chunks(np.arange(add.train.n_rows)):
                labels = take_pattern_rows(add.train.Y, rows)
                writer.add("train", take_rows(add.train.X, rows), _renumber(labels, added_labels))
        if base.test is not None:
            writer.add("test", base.test.X, base.test.Y)
        n_added = 0 if add is None else add.train.n_rows
        _write_files(writer.staged, base, add, remaining, n_added, pairs)
        counts = {"removed": len(removed), "added": n_added, "relabelled": len(relabel)}
        if add is not None and add.text is not None:
            counts |= _count_words(add, add.text)
        sizes = {"base_rows": base.train.n_rows, "base_labels": base.n_labels}
        return writer.finish(
            label_names=pa.array(names, pa.large_string()),
            feature_names=base.feature_names.array if (base.path / FEATURES).exists() else None,
            text=base.text,
            weights=_weights(base.train, add, remaining),
            unseen=None if base.test is None else base.test.unseen,
            source={
                **base.manifest["source"],
                **(source or {}),
                "delta": {"base": base.content_hash, **sizes, **counts},
            },
        )


def _check_rows(base: Dataset, removed: list[int], relabel: Mapping[int, Sequence[str]]) -> Int64:
    """Return the removed rows, ascending. Raises NotFound, InputError."""
    rows = np.array([*removed, *relabel], np.int64)
    outside = rows[(rows < 0) | (rows >= base.train.n_rows)]
    if len(outside):
        last = base.train.n_rows - 1
        raise NotFound(f"row {outside[0]} is not a training row: they are 0 to {last}")
    if len(distinct(rows)) < len(rows):
        raise InputError("a row is named twice in remove and relabel: name each row once")
    return frozen(np.sort(np.array(removed, np.int64)), np.int64)


def _check_features(base: Dataset, add: Dataset) -> None:
    """Raise ParameterError unless both data sets have the same features."""
    texts = [None if data.text is None else data.text.fingerprint for data in (base, add)]
    if texts[0] != texts[1] or base.feature_names != add.feature_names:
        raise ParameterError(
            "the added rows have other features than the base: build them with `like`"
        )


def _number_labels(
    base: Dataset, add: Dataset | None, relabel: Mapping[int, Sequence[str]]
) -> tuple[list[str], Int64]:
    """Return the names of all labels, and the number of each label of the added rows.

    Labels of formats without names are the numbers of the base's labels.
    """
    names: list[str] = base.label_names.to_pylist()
    ids = {name: k for k, name in reversed(list(enumerate(names)))}
    n_base = len(names)

    def number(name: str) -> int:
        if name not in ids:
            ids[name] = len(names)
            names.append(name)
        return ids[name]

    places = np.zeros(0 if add is None else add.n_labels, np.int64)
    if add is not None:
        is_numbered = add.label_names.array.equals(default_names(add.n_labels))
        others = add.label_names.to_pylist()
        for k in np.flatnonzero(add.label_counts):
            places[k] = k if is_numbered and k < n_base else number(others[k])
    for labels in relabel.values():
        for name in labels:
            number(name)
    return names, frozen(places, np.int64)


def _relabelled(
    Y: Pattern, relabel: Mapping[int, Sequence[str]], names: list[str], remaining: Int64
) -> tuple[Pattern, Int64]:
    """Return the label sets of the base with new ones, and the changed pairs, as in `Lineage`."""
    ids = {name: k for k, name in reversed(list(enumerate(names)))}
    pairs, pieces = [np.empty((0, 2), np.int64)], []
    lengths, done = np.diff(Y.indptr), 0
    for row in sorted(relabel):
        before, after = Y.row(row), np.array(sorted({ids[each] for each in relabel[row]}), np.int32)
        changed = np.setxor1d(before, after)
        place = np.full(len(changed), np.searchsorted(remaining, row))
        pairs.append(np.stack([place, changed], 1))
        pieces += [Y.indices[done : Y.indptr[row]], after]
        lengths[row], done = len(after), int(Y.indptr[row + 1])
    indices = np.concatenate([*pieces, Y.indices[done : Y.indptr[-1]]])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return pattern(indptr, indices, len(names)), np.concatenate(pairs)


def _renumber(Y: Pattern, places: Int64) -> Pattern:
    """Return `Y` with label k as places[k], ascending in each row."""
    row_of, labels = np.repeat(np.arange(Y.n_rows), np.diff(Y.indptr)), places[Y.indices]
    return pattern(Y.indptr, labels[np.lexsort((labels, row_of))], int(labels.max(initial=-1)) + 1)


def _chunks(rows: Int64) -> Iterator[Int64]:
    """Yield the rows in pieces."""
    for start in range(0, len(rows), CHUNK_ROWS):
        yield frozen(rows[start : start + CHUNK_ROWS], np.int64)


def _weights(base: Split, add: Dataset | None, remaining: Int64) -> Float32 | None:
    """Return the weights of all training rows, 1 where a part has none; None if none has any."""
    parts = [(base.weights, base.n_rows)]
    parts += [] if add is None else [(add.train.weights, add.train.n_rows)]
    if all(weights is None for weights, _ in parts):
        return None
    before, *added = [np.ones(n) if weights is None else weights for weights, n in parts]
    return frozen(np.concatenate([before[remaining], *added]), np.float32)


def _count_words(add: Dataset, text: TextPipeline) -> dict[str, int]:
    """Return the number of words of the added texts, and of those that give no feature."""
    counts = [text.count_words(texts) for texts in read_texts(add, "train")]
    words, unknown = (sum(each[at] for each in counts) for at in range(2))
    return {"words": words, "unknown_words": unknown}


def _write_files(
    folder: Path, base: Dataset, add: Dataset | None, remaining: Int64, n_added: int, pairs: Int64
) -> None:
    """Write where the rows come from, and what the base has besides matrices."""
    (folder / "train").mkdir(exist_ok=True)
    origin = np.concatenate([remaining, np.full(n_added, -1)])
    write_table(folder / ORIGIN, pa.table({"row": pa.array(origin, pa.int64())}))
    columns = {name: pa.array(pairs[:, at], pa.int64()) for at, name in enumerate(("row", "label"))}
    write_table(folder / RELABELLED, pa.table(columns))
    for name in (LABEL_TEXTS, f"test/{TEXTS}"):
        if name in base.manifest["files"]:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(base.path / name, folder / name)
    if f"train/{TEXTS}" in base.manifest["files"]:
        _write_texts(folder, base, add, remaining)


def _write_texts(folder: Path, base: Dataset, add: Dataset | None, remaining: Int64) -> None:
    """Write the texts of all training rows, and their ids if the base has ids."""
    ids = read_ids(base)
    with TextWriter(folder / "train" / TEXTS, ids is not None) as out:
        for row, text in zip(remaining, texts_of(base, remaining), strict=True):
            out.add(text, "" if ids is None else ids[row])
        if add is not None:
            added = chain.from_iterable(read_texts(add, "train"))
            for text, id in zip(added, read_ids(add) or [""] * add.train.n_rows, strict=True):
                out.add(text, id)
