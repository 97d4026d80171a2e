"""Statistics of a data set for display."""

from __future__ import annotations

from typing import Any

from xcray.data.data_warnings import data_warnings
from xcray.data.dataset import Dataset


def statistics(dataset: Dataset) -> dict[str, Any]:
    """Return sizes, content hash, warnings and the number of skipped rows of a data set.

    The warnings take one pass over all features.
    """
    manifest = dataset.manifest
    result = {
        "n_features": dataset.n_features,
        "n_labels": dataset.n_labels,
        "content_hash": dataset.content_hash,
        "text": dataset.text is not None,
        "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
        "splits": {
            part: {"n_rows": split.n_rows, "x_nnz": split.X.nnz, "y_nnz": split.Y.nnz}
            for part, split in dataset.splits.items()
        },
    }
    source = manifest.get("source", {})
    result["warnings"] = data_warnings(dataset)
    optional = (("skipped", source), ("label_texts", manifest))
    return result | {name: values[name] for name, values in optional if name in values}
