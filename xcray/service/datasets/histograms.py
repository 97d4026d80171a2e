"""Histograms and picture of a data set, example rows; from mapped files and a bounded sample."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from xcray.arrays import Int64
from xcray.data.dataset import Dataset, Split
from xcray.data.texts import texts_at
from xcray.plots.counts import counts_picture
from xcray.plots.picture import Picture

MAX_SAMPLED_ROWS: Final = 1_000_000  # rows whose lengths are read, evenly spaced
MAX_NAMES: Final = 20  # labels and features shown of an example
MAX_TEXT_CHARS: Final = 500  # shown of its text


def dataset_histograms(dataset: Dataset, n_examples: int) -> dict[str, Any]:
    """Return the fields of `DatasetHistogramsView`: histograms and `n_examples` rows per part."""
    return {
        "rows_per_label": _histogram(dataset.label_counts),
        "parts": {part: _part_histograms(dataset, part, n_examples) for part in dataset.splits},
    }


def dataset_picture(dataset: Dataset, name: str) -> Picture:
    """Draw the histograms of the training rows."""
    train = _part_histograms(dataset, "train", 0)
    sampled, rows = train["sampled_rows"], train["n_rows"]
    note = f"{rows:,} training rows, {dataset.n_labels:,} labels"
    if sampled < rows:
        note += f"; lengths of {sampled:,} rows"
    histograms = [
        ("Training rows per label", "training rows", "labels", _histogram(dataset.label_counts)),
        ("Labels per training row", "labels", "rows", train["labels_per_row"]),
        ("Features per training row", "features", "rows", train["features_per_row"]),
    ]
    return counts_picture(f"Rows, labels and features · {name}", note, histograms)


def _part_histograms(dataset: Dataset, part: str, n_examples: int) -> dict[str, Any]:
    """Return the histograms and example rows of one part."""
    split = dataset[part]
    sample = _evenly_spaced(split.n_rows, MAX_SAMPLED_ROWS)
    return {
        "n_rows": split.n_rows,
        "sampled_rows": len(sample),
        "labels_per_row": _histogram(split.Y.indptr[sample + 1] - split.Y.indptr[sample]),
        "features_per_row": _histogram(split.X.indptr[sample + 1] - split.X.indptr[sample]),
        "examples": _examples(dataset, part, n_examples),
    }


def _examples(dataset: Dataset, part: str, n_examples: int) -> list[dict[str, Any]]:
    """Return evenly spaced rows of a part, with the beginnings of their texts."""
    rows = _evenly_spaced(dataset[part].n_rows, n_examples).tolist()
    texts: list[str | None] = [*texts_at(dataset, part, rows)] or [None] * len(rows)
    return [
        {**_example(dataset, dataset[part], row), "text": text and text[:MAX_TEXT_CHARS]}
        for row, text in zip(rows, texts, strict=True)
    ]


def _example(dataset: Dataset, split: Split, row: int) -> dict[str, Any]:
    """Return a row: its first labels by number, and its largest features by magnitude."""
    labels = split.Y.row(row)
    features, values = split.X.row(row)
    order = np.argsort(-np.abs(values), kind="stable")[:MAX_NAMES]
    names = dataset.feature_names.take(features[order].astype(np.int64)).to_pylist()
    return {
        "row": row,
        "n_labels": len(labels),
        "labels": dataset.label_names.take(labels[:MAX_NAMES].astype(np.int64)).to_pylist(),
        "n_features": len(features),
        "features": [
            {"feature": name, "value": value}
            for name, value in zip(names, values[order].tolist(), strict=True)
        ],
    }


def _evenly_spaced(n: int, count: int) -> Int64:
    """Return at most `count` of the numbers 0 to n - 1, ascending."""
    return np.linspace(0, n - 1, min(n, count)).astype(np.int64)


def _histogram(counts: Any) -> dict[str, Any]:
    """Return a histogram of counts whose bins begin at 0, 1, 2, 4, 8 and so on."""
    largest = int(np.max(counts, initial=0))
    edges = [0, *(1 << power for power in range(largest.bit_length() + 1))]
    return {"edges": edges, "counts": np.histogram(counts, edges)[0].tolist()}
