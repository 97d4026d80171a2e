"""Random rows written in any format are read back with the same content hash."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.robustness.badinput.numpy_arrays import saved
from tests.robustness.badinput.parquet import written
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset

D, K = 7, 5
VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda value: value != 0)
ROWS = st.lists(
    st.tuples(st.sets(st.integers(0, K - 1)), st.dictionaries(st.integers(0, D - 1), VALUES)),
    min_size=1,
    max_size=8,
)
# Text that a file can contain: no surrogates and no control characters. A line end ends a row in
# all formats except quoted CSV.
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
NAMES = (
    st.text(st.sampled_from("abcé\U0001f600;,\"' =#:-0123456789"), min_size=1, max_size=8)
    .map(str.strip)
    .filter(bool)
)
DOCUMENTS = st.lists(
    st.tuples(WORDS, st.lists(NAMES, unique=True, max_size=3)), min_size=1, max_size=6
)
FEW = settings(
    deadline=None, derandomize=True, max_examples=10, suppress_health_check=[HealthCheck.too_slow]
)


def build_file(
    folder: Path, name: str, format: str, data: bytes, options: Mapping[str, Any]
) -> Dataset:
    """Build the data set of a file."""
    path = folder / f"{name}.{format}"
    path.write_bytes(data)
    return build(format, {"train": path}, folder / f"{name}-out", BuildOptions.from_dict(options))


def line(labels: set[int], features: dict[int, float], base: int) -> str:
    """Return a row in svmlight."""
    pairs = [f"{index + base}:{value!r}" for index, value in features.items()]
    return " ".join([",".join(map(str, labels)), *pairs])


@FEW
@given(rows=ROWS)
def test_features(rows: list[tuple[set[int], dict[int, float]]]) -> None:
    rows = [*rows, ({K - 1}, {D - 1: 1.0})]  # so that the widths and a label are detected
    widths = {"n_features": D, "n_labels": K}
    lists = {
        "indices": pa.array([list(features) for _, features in rows], pa.list_(pa.int16())),
        "values": pa.array(
            [list(features.values()) for _, features in rows], pa.list_(pa.float64())
        ),
        "labels": pa.array([sorted(labels) for labels, _ in rows], pa.list_(pa.int32())),
    }
    dense = np.zeros((len(rows), D), np.float32)
    for i, (_, features) in enumerate(rows):
        dense[i, list(features)] = list(features.values())
    fixed = pa.FixedSizeListArray.from_arrays(dense.ravel(), D)
    indicator = np.array([[k in labels for k in range(K)] for labels, _ in rows])
    files: dict[str, tuple[str, bytes, dict[str, Any]]] = {
        "one": ("svmlight", "\n".join(line(*row, 1) for row in rows).encode(), widths),
        "zero": (
            "svmlight",
            "\r\n".join(line(*row, 0) for row in rows).encode(),
            {**widths, "zero_based": True},
        ),
        "xc": (
            "xc",
            "\n".join([f"{len(rows)} {D} {K}", *(line(*row, 0) for row in rows), ""]).encode(),
            {},
        ),
        "sparse": ("parquet", written(lists, row_group_size=3), widths),
        "dense": ("parquet", written({"values": list(dense), "labels": lists["labels"]}), widths),
        "fixed": ("parquet", written({"values": fixed, "labels": lists["labels"]}), widths),
        "arrays": ("npz", saved(X=dense, y=indicator), widths),
    }
    # In svmlight an empty line is not a row: use only rows that all formats can express.
    output = all(labels or features for labels, features in rows)
    with TemporaryDirectory() as folder:
        entries = {name: file for name, file in files.items() if output or file[0] != "svmlight"}
        sets = [build_file(Path(folder), name, *file) for name, file in entries.items()]
        assert len({each.content_hash for each in sets}) == 1
        assert np.array_equal(sets[0].train.X.to_scipy().toarray(), dense)
        assert [set(row.nonzero()[0]) for row in sets[0].train.Y.to_scipy().toarray()] == [
            labels for labels, _ in rows
        ]


@FEW
@given(documents=DOCUMENTS)
def test_documents(documents: list[tuple[str, list[str]]]) -> None:
    rows = [(f"word {text}", labels) for text, labels in [*documents, ("", ["a label"])]]
    joined = ["|".join(labels) for _, labels in rows]
    quoted = io.StringIO()
    csv.writer(quoted, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        [("text", "labels"), *((text, each) for (text, _), each in zip(rows, joined, strict=True))]
    )
    tabs = "\n".join(
        ["text\tlabels", *(f"{text}\t{each}" for (text, _), each in zip(rows, joined, strict=True))]
    )
    texts = [text for text, _ in rows]
    names = pa.array([labels for _, labels in rows], pa.list_(pa.string()))
    files = {
        "jsonl": (
            "jsonl",
            "\n".join(
                json.dumps({"text": text, "labels": labels}) for text, labels in rows
            ).encode(),
        ),
        "utf8": (
            "jsonl",
            "\n".join(
                json.dumps({"text": t, "labels": n}, ensure_ascii=False) for t, n in rows
            ).encode(),
        ),
        "csv": ("csv", quoted.getvalue().encode()),
        "tsv": ("tsv", tabs.encode()),
        "lists": ("parquet", written({"text": texts, "labels": names})),
        "strings": (
            "parquet",
            written(
                {"text": pa.array(texts).dictionary_encode(), "labels": joined}, row_group_size=2
            ),
        ),
    }
    with TemporaryDirectory() as folder:
        sets = [build_file(Path(folder), name, *file, {}) for name, file in files.items()]
        assert len({each.content_hash for each in sets}) == 1
        assert set(sets[0].label_names.to_pylist()) == {
            label for _, labels in rows for label in labels
        }
