"""Rows P1 to P15: Parquet."""

from __future__ import annotations

import datetime
import decimal
import io
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.robustness.badinput.case import LFS, Bad, Good

TEXT: dict[str, Any] = {"text": ["some words", "more words"], "labels": [["x"], ["y", "x"]]}
ROWS: dict[str, Any] = {
    "indices": [[0, 2], [1]],
    "values": [[1.0, 2.0], [3.0]],
    "labels": [[0], [1]],
}
X, Y = [[1, 0, 2], [0, 3, 0]], [[1, 0], [0, 1]]


def written(columns: Any, **how: Any) -> bytes:
    """Return a Parquet file of columns or of a table."""
    out = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), out, **how)
    return out.getvalue()


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace a byte string that occurs once by another one of the same length."""
    assert data.count(old) == 1, data.count(old)
    assert len(old) == len(new)
    return data.replace(old, new)


def claimed(footer: bytes) -> bytes:
    """Return a file that consists of a footer only."""
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


def nested(depth: int) -> bytes:
    """Return a file with a column of lists, nested `depth` times."""
    column = pa.array([1], pa.int32())
    for _ in range(depth):
        column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column)
    return written({**{name: values[:1] for name, values in TEXT.items()}, "deep": column})


def flipped() -> bytes:
    """Return a file with one flipped bit in a page that has a checksum."""
    data = bytearray(
        written(
            TEXT,
            write_page_checksum=True,
            use_dictionary=False,
            compression="none",
            write_statistics=False,
        )
    )
    data[data.index(b"some words")] ^= 1
    return bytes(data)


def extended() -> bytes:
    """Return a file with an extension type whose metadata asks the reader to run code."""
    about = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": b"cos\nsystem\n.",
    }
    schema = pa.schema(
        [pa.field("text", pa.string(), metadata=about), ("labels", pa.list_(pa.string()))]
    )
    return written(
        pa.table({name: pa.array(values) for name, values in TEXT.items()}, schema=schema)
    )


def rows(**other: Any) -> bytes:
    """Return a file of feature rows with some columns replaced."""
    return written({**ROWS, **other})


WHOLE = written(TEXT)
MILLION = b"\xfc\xc0\x84\x3d"  # a list of a million structs in Thrift's compact protocol
SAME = pa.table(
    {"text": pa.array(["many words " * 1000] * 4000).dictionary_encode(), "labels": [["x"]] * 4000}
)
ZEROS = pa.table({"values": [np.zeros(2_000_000, np.float32)], "labels": [["x"]]})
SMALL = {"max_decompressed": 1 << 20}

BAD = [
    Bad("P1", b"", "PARQUET_INVALID", says="0 bytes"),
    Bad("P1-magic", b"PAR1", "PARQUET_INVALID", says="4 bytes"),
    Bad("P1-twice", b"PAR1PAR1", "PARQUET_INVALID"),
    Bad("P1-other", b"text,labels\nsome words,x\n", "FORMAT_MISMATCH", hint="csv"),
    Bad("P1-bytes", b"\x00\x01" * 8, "FORMAT_MISMATCH", says="PAR1"),
    Bad("P1-lfs", LFS, "FORMAT_MISMATCH", says="Git LFS", hint="git lfs pull"),
    Bad("P2", WHOLE[: len(WHOLE) // 2], "PARQUET_TRUNCATED", hint="complete"),
    Bad("P2-last", WHOLE[:-1], "PARQUET_TRUNCATED"),
    Bad(
        "P3",
        WHOLE[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1",
        "PARQUET_INVALID",
        says="2147483647",
    ),
    Bad("P3-zero", WHOLE[:-8] + struct.pack("<I", 0) + b"PAR1", "PARQUET_CORRUPT"),
    Bad("P4", WHOLE[:-4] + b"PARE", "PARQUET_ENCRYPTED", hint="without encryption"),
    Bad("P4-both", b"PARE" + WHOLE[4:-4] + b"PARE", "PARQUET_ENCRYPTED"),
    Bad("P5", flipped(), "PARQUET_CORRUPT", says="CRC"),
    Bad("P6", written({"text": ["a"]}), "PARQUET_COLUMN", value="labels", says="there are: text"),
    Bad(
        "P6-renamed",
        written({"words": ["a"], "labels": [["x"]]}),
        "PARQUET_COLUMN",
        value="text",
        says="words, labels",
    ),
    Bad(
        "P6-case",
        written({"Text": ["a"], "labels": [["x"]]}),
        "PARQUET_COLUMN",
        value="text",
        hint="'Text'",
    ),
    Bad(
        "P6-twice",
        written(pa.table([["a"], ["b"], [["x"]]], ["text", "text", "labels"])),
        "PARQUET_COLUMN",
        value="text",
    ),
    Bad(
        "P7",
        rows(indices=[["0"], ["1"]]),
        "PARQUET_TYPE",
        says="lists of whole numbers are expected",
        value="list<element: string>",
    ),
    Bad("P7-plain", rows(indices=[0, 1]), "PARQUET_TYPE", value="int64"),
    Bad(
        "P7-decimal", rows(values=[[decimal.Decimal("1.5")], []]), "PARQUET_TYPE", says="decimal128"
    ),
    Bad(
        "P7-time",
        written({**TEXT, "text": [datetime.datetime(2024, 1, 1)] * 2}),
        "PARQUET_TYPE",
        says="timestamp",
    ),
    Bad(
        "P7-half",
        rows(values=pa.array([[np.float16(1)], []], pa.list_(pa.float16()))),
        "PARQUET_TYPE",
        says="halffloat",
    ),
    Bad(
        "P7-label",
        written({**TEXT, "labels": [1.5, 2.5]}),
        "PARQUET_TYPE",
        says="'labels' has type double",
    ),
    Bad(
        "P7-objects",
        written({**TEXT, "labels": [[{"uri": "u"}], []]}),
        "PARQUET_TYPE",
        hint="label_field=labels.uri",
    ),
    Bad(
        "P7-key",
        written({**TEXT, "labels": [[{"uri": "u"}], []]}),
        "PARQUET_TYPE",
        says="a field 'name'",
        options={"label_field": "labels.name"},
    ),
    Bad(
        "P7-columns",
        written({"text": ["a", "b"], "a": [1, 0], "b": [["x"], []]}),
        "PARQUET_TYPE",
        says="0 and 1",
        options={"label_columns": ["a", "b"]},
    ),
    Bad("P6-columns", written({"text": ["a"], "a": [1]}), "PARQUET_COLUMN", hint="label_columns"),
    Bad(
        "P8-columns",
        written({"text": ["a", "b"], "a": [1, 0], "b": [0.5, 1]}),
        "LABEL_RANGE",
        row=0,
        says="'b' is neither 0 nor 1",
        options={"label_columns": ["a", "b"]},
    ),
    Bad("P8-indicators", rows(labels=[[0], [0, 1, 1]]), "LABEL_INDICATORS", row=1),
    Bad("P8-names", written({**TEXT, "labels": [["0", "0", "1"], []]}), "LABEL_INDICATORS", row=0),
    Bad(
        "P8",
        rows(values=[[1.0, 2.0], [3.0, 4.0]]),
        "ROW_LENGTHS",
        row=1,
        says="1 indices and 2 values",
    ),
    Bad("P9", rows(values=[None, [3.0]]), "NULL_VALUE", row=0, says="values"),
    Bad("P9-element", rows(values=[[1.0, None], [3.0]]), "NULL_VALUE", row=0),
    Bad("P9-NaN", rows(values=[[1.0, 2.0], [float("nan")]]), "NOT_FINITE", row=1, says="feature 1"),
    Bad("P9-inf", rows(values=[[1.0, float("inf")], [3.0]]), "NOT_FINITE", row=0, value="inf"),
    Bad("P9-float32", rows(values=[[1.0, 1e39], [3.0]]), "NOT_FINITE", row=0),
    Bad("P9-text", written({**TEXT, "text": ["a", None]}), "NULL_VALUE", row=1, says="text"),
    Bad("P9-labels", written({**TEXT, "labels": [["x"], None]}), "NULL_VALUE", row=1),
    Bad("P9-label", written({**TEXT, "labels": [["x"], [None]]}), "NULL_VALUE", row=1),
    Bad("P9-ids", rows(labels=[[0], [None]]), "NULL_VALUE", row=1, says="labels"),
    Bad(
        "P10",
        rows(indices=pa.array([[0, 2**63 + 1], [1]], pa.list_(pa.uint64()))),
        "INDEX_RANGE",
        row=0,
        value=str(2**63 + 1),
    ),
    Bad("P10-negative", rows(indices=[[0, -2], [1]]), "INDEX_RANGE", row=0, value="-2"),
    Bad(
        "P10-n-features",
        rows(),
        "INDEX_RANGE",
        row=0,
        value="2",
        options={"n_features": 2},
        says="from 0 to 1",
    ),
    Bad("P10-limit", rows(indices=[[0, 2**31 - 2], [1]]), "DIM_LIMIT", row=0, hint="max_features"),
    Bad("P10-twice", rows(indices=[[2, 2], [1]]), "DUP_INDEX", row=0, value="2"),
    Bad("P10-label", rows(labels=[[0], [-1]]), "LABEL_RANGE", row=1, value="-1"),
    Bad(
        "P10-n-labels",
        rows(labels=[[0], [2]]),
        "LABEL_RANGE",
        row=1,
        value="2",
        options={"n_labels": 2},
    ),
    Bad("P10-label-limit", rows(labels=[[0], [2**31 - 2]]), "DIM_LIMIT", row=1, hint="max_labels"),
    Bad("P11", claimed(b"\x15\x02\x19" + MILLION + bytes(100)), "PARQUET_LIMIT", hint="row groups"),
    Bad(
        "P11-groups",
        claimed(b"\x15\x02\x19\x1c\x48\x01a\x00\x16\x00\x19" + MILLION + bytes(100)),
        "PARQUET_LIMIT",
    ),
    Bad("P11-nesting", nested(150), "PARQUET_LIMIT"),
    Bad("P12", written(SAME), "DECOMPRESSED_LIMIT", options=SMALL),
    Bad("P12-zeros", written(ZEROS), "DECOMPRESSED_LIMIT", options=SMALL, hint="max_expansion"),
    Bad("P12-field", written(SAME), "FIELD_TOO_LONG", row=0, options={"max_field_bytes": 1000}),
    Bad("P14", WHOLE, "SCHEMA_MISMATCH", test=rows(), file="test.parquet", says="text in text"),
    Bad(
        "P14-labels",
        rows(),
        "SCHEMA_MISMATCH",
        test=rows(labels=[["a"], ["b"]]),
        file="test.parquet",
        says="labels as names",
    ),
    Bad("P14-column", WHOLE, "PARQUET_COLUMN", test=written({"text": ["a"]}), file="test.parquet"),
    Bad(
        "P15",
        changed(written(TEXT, compression="snappy"), b"\x04text\x15\x02", b"\x04text\x15\x78"),
        "PARQUET_CODEC",
        hint="zstd",
    ),
    Bad(
        "dense",
        written({"values": [[1.0, 2.0], [3.0]], "labels": [[0], [1]]}),
        "DIM",
        row=1,
        says="1 values",
    ),
    Bad("no rows", written(pa.table(TEXT).slice(0, 0)), "EMPTY_FILE"),
    Bad("no labels", rows(labels=pa.array([[], []], pa.list_(pa.int64()))), "NO_POSITIVES"),
    Bad("no names", rows(labels=pa.array([[], []], pa.list_(pa.string()))), "NO_POSITIVES"),
    Bad("no text", written({**TEXT, "text": ["a", " "]}), "EMPTY_TEXT", row=1),
    Bad("empty label", written({**TEXT, "labels": ["x", "x||y"]}), "LABEL_EMPTY", row=1),
    Bad(
        "unknown name",
        rows(labels=[["y"], ["z"]]),
        "LABEL_UNKNOWN",
        row=1,
        value="z",
        options={"label_names_file": "names.txt"},
        more={"names.txt": b"x\ny\n"},
    ),
]

GOOD = [
    Good(
        "columns of labels",
        rows(labels=["", ""], b=[True, False], a=[0, 1]),
        X,
        [[0, 1], [1, 0]],
        ["a", "b"],
        options={"label_columns": "b:a"},
    ),
    Good(
        "columns of labels of texts",
        written({"text": ["some words", "more"], "b": [0.0, 1.0], "a": ["1", "0"]}),
        labels=["a", "b"],
        options={"label_columns": "*"},
    ),
    Good(
        "objects as labels",
        rows(labels=[[{"uri": "b", "n": 1}], [{"uri": "a", "n": 2}]]),
        X,
        [[0, 1], [1, 0]],
        ["a", "b"],
        options={"label_field": "labels.uri"},
    ),
    Good(
        "lists and tags in strings",
        written({"text": ["some words", "more"], "labels": ["['a', 'b']", "<b><c>"]}),
        labels=["a", "b", "c"],
    ),
    Good("P5-none", rows(), X, Y),
    Good("P6-extra", written({**ROWS, "other": [object.__name__] * 2}), X, Y),
    Good(
        "P7-dictionary",
        written(pa.table({**TEXT, "text": pa.array(TEXT["text"]).dictionary_encode()})),
        labels=["x", "y"],
    ),
    Good(
        "P9-empty", rows(labels=[[], [1]]), X, [[0, 0], [0, 1]], warnings={"rows_without_labels": 1}
    ),
    Good("P13", extended(), labels=["x", "y"]),
    Good("P15-v2", written(ROWS, data_page_version="2.0", compression="zstd"), X, Y),
    Good("P15-crc", written(ROWS, write_page_checksum=True), X, Y),
    Good("names", rows(labels=[["b"], ["a"]]), X, [[0, 1], [1, 0]], ["a", "b"]),
    Good("in any order", rows(indices=[[2, 0], [1]]), [[2, 0, 1], [0, 3, 0]], Y),
    Good(
        "dense rows",
        written({"values": [[1.0, 0, 2.0], [0, 3.0, 0]], "labels": [[0], [1, 1]]}),
        X,
        Y,
    ),
    Good("whole numbers", rows(values=pa.array([[1, 2], [3]], pa.list_(pa.int8()))), X, Y),
    Good(
        "one string",
        written({**TEXT, "labels": ["x", " y | x "]}),
        None,
        [[1, 0], [1, 1]],
        ["x", "y"],
    ),
    Good(
        "numbers as names",
        written({**TEXT, "labels": [[10], [9]]}),
        None,
        [[0, 1], [1, 0]],
        ["9", "10"],
    ),
]
