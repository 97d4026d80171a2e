"""The bad-input table: every row gives its code, line and column, shows no path of this machine, and publishes nothing.

Rows are named as in docs/formats.md. A row without a code is readable; its check says what came of it.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from xcray.data.build import BuildOptions, build
from xcray.data.check import check
from xcray.data.dataset import Dataset
from xcray.data.options import ReadOptions
from xcray.data.problems import DataErrors, Tally
from xcray.data.splits import RowSplit
from xcray.data.svmlight import read_svmlight
from xcray.errors import DataError, ParameterError


class Bad(NamedTuple):
    """One row of the table: bytes of the file, the code, and whatever else the error must tell."""

    id: str
    data: bytes
    code: str
    line: int | None = None
    column: int | None = None
    value: str | None = None
    hint: str = ""
    says: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012  a NamedTuple's default, never changed
    name: str = "train.svm"


def zipped(*members: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for member in members:
            archive.writestr(member, "1 1:1\n")
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("train.svm"))
    return out.getvalue()


SVMLIGHT = [
    Bad("S1", b"", "EMPTY_FILE", says="no rows"),
    Bad("S2", b"# a\n\n  \n# b\n", "EMPTY_FILE"),
    Bad("S3", b"1 1:1\n\n2 1:1\n", "SVM_BLANK_LINE", 2),
    Bad("S3-blanks", b"1 1:1\n \t\r\n2 1:1\n", "SVM_BLANK_LINE", 2),
    Bad("S4", b"1 3\n", "SVM_NO_COLON", 1, 3, "3"),
    Bad("S5", b"1 3:\n", "SVM_BAD_VALUE", 1, 5, ""),
    Bad("S6", b"1 :3\n", "SVM_BAD_INDEX", 1, 3, ""),
    Bad("S7", b"1 3:1:2\n", "SVM_BAD_VALUE", 1, 5, "1:2", hint="missing space"),
    Bad("S8", b"1 6.6e-0114:8.7\n", "SVM_BAD_VALUE", 1, 3, "6.6e-0114", hint="missing space"),
    Bad("S9", b"1 -3:1\n", "SVM_INDEX_RANGE", 1, 3, "-3"),
    Bad("S10", b"1 1:1\n1 0:1\n", "SVM_INDEX_RANGE", 2, 3, "0", hint="zero_based"),
    Bad("S11", b"1 2147483648:1\n", "SVM_INDEX_RANGE", 1, 3, "2147483648", says="2147483647"),
    Bad("S12", b"1 9223372036854775808:1\n", "SVM_INDEX_RANGE", 1, 3),
    Bad("S12-long", b"1 " + b"9" * 5000 + b":1\n", "SVM_INDEX_RANGE", 1, 3),
    Bad("S13", b"1 1.5:1\n", "SVM_BAD_INDEX", 1, 3, "1.5"),
    Bad("S14", b"1 1:nan\n", "SVM_NOT_FINITE", 1, 5, "nan"),
    Bad("S15", b"1 1:inf\n", "SVM_NOT_FINITE", 1, 5, "inf"),
    Bad("S15-minus", b"1 1:-Infinity\n", "SVM_NOT_FINITE", 1, 5, "-Infinity"),
    Bad("S16", b"1 1:1e400\n", "SVM_NOT_FINITE", 1, 5, "1e400"),
    Bad("S17", b"1 1:1e39\n", "SVM_NOT_FINITE", 1, 5, "1e39", says="float32"),
    Bad("S18", b"1 1:0x1p3\n", "SVM_BAD_VALUE", 1, 5, "0x1p3"),
    Bad("S19", b"1 1:1_0\n", "SVM_BAD_VALUE", 1, 5, "1_0"),
    Bad("S20", b"1 1:1,5\n", "SVM_BAD_VALUE", 1, 5, "1,5", hint="comma"),
    Bad("S21", b"1 1:1 1:2\n", "SVM_DUP_INDEX", 1, 7, "1"),
    Bad("S21-apart", b"1 1:1 11:3 2:1 1:2\n", "SVM_DUP_INDEX", 1, 16, "1"),
    Bad("S23", b"1 1:1\n-1 1:1\n", "LABEL_RANGE", 2, 1, "-1"),
    Bad("S24", b"nan 1:1\n", "LABEL_NOT_INT", 1, 1, "nan"),
    Bad("S25", b"3,1.5 1:1\n", "LABEL_NOT_INT", 1, 3, "1.5"),
    Bad("S27", b"1, 1:1\n", "LABEL_EMPTY", 1, 3),
    Bad("S28", b"1;2 1:1\n", "LABEL_NOT_INT", 1, 1, "1;2", hint="','"),
    Bad("S29", b"2 1:1\n", "LABEL_RANGE", 1, 1, "2", says="number of labels, 2", options={"n_labels": 2}),
    Bad("S31", b"1:1 2:1\n", "LABEL_MISSING", 1, 1, hint="blank"),
    Bad("S32", b"1 1:1\r2 1:1\r", "LINE_ENDING", 1, 6),
    Bad("S32-mixed", b"1 1:1\n1 1:1\r2 1:1\n", "LINE_ENDING", 2, 6),
    Bad("S35", "1 1:1\n".encode("utf-16"), "ENCODING", 1, 1, says="UTF-16"),
    Bad("S35-no-mark", "1 1:1\n2 2:2\n".encode("utf-16-le"), "ENCODING", 1, 1, says="UTF-16"),
    Bad("S36", b"1 1:1\n2 1:\x001\n", "BINARY_DATA", 2, 5, says="offset 10"),
    Bad("S37", "1 ١:1\n".encode(), "SVM_BAD_INDEX", 1, 3, "١"),
    Bad("S37-value", "1 1:١\n".encode(), "SVM_BAD_VALUE", 1, 5, "١"),
    Bad("S38", gzip.compress(b"1 1:1\n"), "COMPRESSED", says="gzip"),
    Bad("S38-xz", lzma.compress(b"1 1:1\n"), "COMPRESSED", says="xz"),
    Bad("S38-zstd", b"\x28\xb5\x2f\xfd" + b"\x01" * 9, "COMPRESSED", says="zstd"),
    Bad("S38-zip", zipped("train.svm"), "COMPRESSED", says="zip"),
    Bad("S38-twice", gzip.compress(gzip.compress(b"1 1:1\n")), "COMPRESSED", says="gzip", name="train.svm.gz"),
    Bad("S38-cut", gzip.compress(b"1 1:1\n" * 99)[:-9], "COMPRESSED_CORRUPT", name="train.svm.gz"),
    Bad("S38-other", b"1 1:1\n", "COMPRESSED_CORRUPT", name="train.svm.xz"),
    Bad("S38-bz2", b"1 1:1\n", "COMPRESSED_CORRUPT", name="train.svm.bz2"),
    Bad("S39", b"1 1:1\n2 13:0.", "UPLOAD_TRUNCATED", 2, 6, "0."),
    Bad("S39-size", b"1 1:1\n2 13:0", "UPLOAD_TRUNCATED", says="20", options={"expected_bytes": 20}),
    Bad("S39-sha", b"1 1:1\n2 13:0", "UPLOAD_TRUNCATED", says="SHA-256", options={"expected_sha256": "0" * 64}),
    Bad("S40", b"1 qid:3 1:1\n", "SVM_QID", 1, 3, "qid:3"),
    Bad("S41", b"1 1:1#2:3\n", "SVM_BAD_VALUE", 1, 5, "1#2:3", hint="comment"),
    Bad("S42", b"1 2147483647:1\n", "DIM_LIMIT", 1, 3, hint="max_features"),
    Bad("S42-label", b"2147483646 1:1\n", "DIM_LIMIT", 1, 1, hint="max_labels"),
    Bad("S43", b"1 1:1\n1 4:1\n", "SVM_INDEX_RANGE", 2, 3, "4", says="last feature, 3", options={"n_features": 3}),
    Bad("S45", b"id,text,label\n1,hello,2\n", "FORMAT_MISMATCH", 1, hint="csv"),
    Bad("S45-numbers", b"1,2,3\n4,5,6\n7,8,9\n", "FORMAT_MISMATCH", 1, hint="csv"),
    Bad("S45-json", b'{"text": "a"}\n', "FORMAT_MISMATCH", 1, hint="jsonl"),
    Bad("S47", b" 1:1\n 2:1\n", "NO_POSITIVES"),
    Bad("X14", b"2 5 5\n1 0:1\n2 0:1\n", "FORMAT_MISMATCH", 1, hint="xc"),
    Bad("latin-1", b"1 1:1 # ok\n1 1:\xe9\n", "ENCODING", 2, 5),
]

XC = [
    Bad("X1", b"1 0:1\n2 0:1\n", "XC_NO_HEADER", 1, 1, hint="svmlight"),
    Bad("X2", b"2 5\n1 0:1\n", "XC_HEADER_FIELDS", 1, says="2 fields"),
    Bad("X2-four", b"2 5 5 5\n1 0:1\n", "XC_HEADER_FIELDS", 1, says="4 fields"),
    Bad("X3", b"0 5 5\n", "XC_HEADER_RANGE", 1, 1, "0"),
    Bad("X3-minus", b"-1 5 5\n", "XC_HEADER_RANGE", 1, 1, "-1"),
    Bad("X3-labels", b"5 5 0\n", "XC_HEADER_RANGE", 1, 5, "0"),
    Bad("X4", b"2.0 5 5\n", "XC_HEADER_NOT_INT", 1, 1, "2.0"),
    Bad("X4-e", b"2e3 5 5\n", "XC_HEADER_NOT_INT", 1, 1, "2e3"),
    Bad("X4-word", b"two 5 5\n", "XC_HEADER_NOT_INT", 1, 1, "two"),
    Bad("X5-rows", b"1000000000000 5 5\n1 0:1\n", "XC_HEADER_LIMIT", 1, 1),
    Bad("X5-features", b"1 1000000000000 5\n1 0:1\n", "XC_HEADER_LIMIT", 1, 3),
    Bad("X5-labels", b"1 5 1000000000000\n1 0:1\n", "XC_HEADER_LIMIT", 1, 5),
    Bad("X6", b"9223372036854775808 5 5\n", "XC_HEADER_LIMIT", 1, 1),
    Bad("X6-20", b"5 99999999999999999999 5\n", "XC_HEADER_LIMIT", 1, 3),
    Bad("X6-5000", b"5 5 " + b"9" * 5000 + b"\n", "XC_HEADER_LIMIT", 1, 5),
    Bad("X7", b"3 5 5\n1 0:1\n2 0:1\n", "XC_ROW_COUNT", says="3 rows, the file has 2"),
    Bad("X8", b"1 5 5\n1 0:1\n2 0:1\n", "XC_ROW_COUNT", 3, says="more rows than the 1"),
    Bad("X8-comments", b"2 5 5\n# a\n1 0:1\n1 0:1 # b\n# c\n2 0:1\n", "XC_ROW_COUNT", 6),
    Bad("X9", b"1 5 5\n1 5:1\n", "SVM_INDEX_RANGE", 2, 3, "5", hint="counts from 1"),
    Bad("X10", b"1 5 5\n5 0:1\n", "LABEL_RANGE", 2, 1, "5", says="labels, 5"),
    Bad("X11", b"2 5 5\n", "XC_ROW_COUNT", says="2 rows, the file has 0"),
    Bad("X11-no-newline", b"2 5 5", "XC_ROW_COUNT"),
    Bad("X13", b"2 5 5\n1 0:1\n2 5 5\n1 0:1\n", "XC_HEADER_TWICE", 3, 1, hint="joined"),
    Bad("X16", b"1 5 5\n1, 3 2:4\n", "LABEL_EMPTY", 2, 3, hint="comma"),
    Bad("X-empty", b"", "EMPTY_FILE"),
    Bad("X-fields-asked", b"1 5 5\n1 0:1\n", "DIM_MISMATCH", 1, says="4", options={"n_features": 4}),
]

CSV = [
    Bad("C1", b"text,labels\na,1\nb,2,3\n", "CSV_FIELDS", 3, says="3 fields, 2 are expected"),
    Bad("C2", b'text,labels\n"a,1\nb,2\n', "CSV_QUOTE", 2, 1, says="never closed"),
    Bad("C2-inside", b'text,labels\n5" disk,1\n', "CSV_QUOTE", 2, 2, hint="double"),
    Bad("C2-after", b'text,labels\n"a"b,1\n', "CSV_QUOTE", 2, 4),
    Bad("C4", b"text;labels\na;1\n", "CSV_ONE_COLUMN", 1, hint="';'"),
    Bad("C4-tab", b"text\tlabels\na\t1\n", "CSV_ONE_COLUMN", 1, hint="\\t"),
    Bad("C5", b"a good book,1\nanother,2\n", "CSV_HEADER", 1, hint="header=false"),
    Bad("C5-twice", b"text,labels,text\na,1,b\n", "CSV_HEADER", 1, value="text"),
    Bad("C5-empty", b"text,,labels\na,1,b\n", "CSV_HEADER", 1, value=""),
    Bad("C6", b"text,labels\ncaf\xe9,1\n", "ENCODING", 2, 4, "\\xe9,1", says="offset 15"),
    Bad("C7", b"text,labels\na\x00b,1\n", "BINARY_DATA", 2, 2, says="offset 13"),
    Bad("C9", b"text,labels\n" + b"a" * 200 + b",1\n", "FIELD_TOO_LONG", 2, options={"max_field_bytes": 100}),
    Bad("C9-quoted", b'text,labels\n"' + b"a\n" * 200 + b'",1\n', "FIELD_TOO_LONG", 2, 1, options={"max_field_bytes": 100}),
    Bad("C9-line", b"text,labels\n" + b"a" * 200 + b",1\n", "FIELD_TOO_LONG", 2, options={"max_line_bytes": 100}),
    Bad("C10", b"text,labels\na,1\n ,2\n", "EMPTY_TEXT", 3),
    Bad("C15", b'text,labels\na,"1,000"\n', "LABEL_NOT_INT", 2, value="1,000", options={"label_ids": True}),
    Bad("C15-point", b"text,labels\na,1.5\n", "LABEL_NOT_INT", 2, value="1.5", options={"label_ids": True}),
    Bad("C16", zipped("[Content_Types].xml", "xl/workbook.xml"), "FORMAT_MISMATCH", says="xlsx"),
    Bad("C17", b"text,labels\ra,1\r", "LINE_ENDING", 1),
    Bad("C17-mixed", b"text,labels\r\na,1\rb,2\n", "LINE_ENDING", 2, 4),
    Bad(
        "C19",
        gzip.compress(b"text,labels\n" + b"a,1\n" * (1 << 18)),
        "DECOMPRESSED_LIMIT",
        options={"max_decompressed": 1 << 19},
        name="train.csv.gz",
    ),
    Bad("C20", zipped("train.csv"), "ARCHIVE_REFUSED"),
    Bad("C20-named", zipped("train.csv"), "ARCHIVE_REFUSED", name="train.zip"),
    Bad("C20-tar", tarred(), "ARCHIVE_REFUSED", says="tar"),
    Bad("C20-tar-gz", gzip.compress(tarred()), "ARCHIVE_REFUSED", name="train.csv.gz"),
    Bad("empty", b"text,labels\n", "EMPTY_FILE"),
    Bad("empty-label", b"text,labels\na,1||2\n", "LABEL_EMPTY", 2),
    Bad("no-labels", b"text,labels\nsome words,\n", "NO_POSITIVES"),
]

JSONL = [
    Bad("json", b'{"text": "a", "labels": ["x"]}\n{"text": }\n', "JSON_INVALID", 2, 10),
    Bad("json-after", b'{"text": "a", "labels": ["x"]} 1\n', "JSON_INVALID", 1, 32),
    Bad("json-nan", b'{"text": "a", "labels": NaN}\n', "JSON_INVALID", 1),
    Bad("json-dup", b'{"text": "a", "text": "b", "labels": []}\n', "JSON_DUP_KEY", 1),
    Bad("json-deep", b'{"text": ' + b"[" * 100_000 + b"\n", "JSON_DEPTH", 1),
    Bad("json-digits", b'{"text": "a", "labels": [' + b"9" * 5000 + b"]}\n", "JSON_INVALID", 1),
    Bad("json-array", b'[{"text": "a"}]\n', "FORMAT_MISMATCH", 1, hint="jq"),
    Bad("json-missing", b'{"words": "a", "labels": []}\n', "FIELD_MISSING", 1, says="words"),
    Bad("json-type", b'{"text": 1, "labels": []}\n', "FIELD_TYPE", 1),
    Bad("json-labels", b'{"text": "a", "labels": [1.5]}\n', "FIELD_TYPE", 1),
    Bad("json-cr", b'{"text": "a", "labels": []}\r{"text": "b", "labels": []}\n', "LINE_ENDING", 1, 28),
    Bad("C13-label", b'{"text": "a", "labels": ["\\ud800"]}\n', "ENCODING", 1),
]

TABLE = [
    *(("svmlight", row) for row in SVMLIGHT),
    *(("xc", row) for row in XC),
    *(("csv", row._replace(name=row.name.replace("svm", "csv"))) for row in CSV),
    *(("jsonl", row._replace(name="train.jsonl")) for row in JSONL),
]


def shown(error: DataError) -> str:
    return str(error) + json.dumps(error.as_dict())


@pytest.mark.parametrize(("format", "row"), TABLE, ids=[f"{format}-{row.id}" for format, row in TABLE])
def test_bad_input(format: str, row: Bad, tmp_path: Path) -> None:
    path = tmp_path / row.name
    path.write_bytes(row.data)
    with pytest.raises(DataError) as caught:
        build(format, {"train": path}, tmp_path / "out", BuildOptions(read=ReadOptions(**row.options)))
    error = caught.value
    assert (error.code, error.line) == (row.code, row.line if row.line is not None else error.line), str(error)
    assert error.file == row.name
    if row.column is not None:
        assert error.column == row.column
    if row.value is not None:
        assert error.value == row.value
    assert row.hint in (error.hint or "")
    assert row.says in str(error)
    assert str(tmp_path) not in shown(error)
    assert str(error).isprintable()
    assert [p.name for p in tmp_path.iterdir()] == [row.name], "nothing is published or left behind"
    report = check(format, path, ReadOptions(**row.options))
    assert row.code in [found["code"] for found in report.errors], "the check finds what the build refuses"
    assert not report.good


def made(tmp_path: Path, data: bytes, format: str = "svmlight", name: str = "train.txt", **options: Any) -> Dataset:
    path = tmp_path / name
    path.write_bytes(data)
    return build(format, {"train": path}, tmp_path / "out", BuildOptions(read=ReadOptions(**options)))


def dense(ds: Dataset) -> tuple[Any, Any]:
    return ds.train.X.to_scipy().toarray().tolist(), ds.train.Y.to_scipy().toarray().astype(int).tolist()


def warnings_of(ds: Dataset) -> dict[str, int]:
    return dict(ds.manifest["source"]["parts"]["train"]["warnings"])


READABLE = {
    "S17 underflow": (b"0 1:1e-400 2:1e-50 3:1\n", [[0, 0, 1]], [[1]]),
    "S22 unsorted": (b"0 3:1 1:2\n", [[2, 0, 1]], [[1]]),
    "S26 duplicate label": (b"1,1 1:1\n", [[1]], [[0, 1]]),
    "S30 no label": (b" 1:1\n0 1:2\n", [[1], [2]], [[0], [1]]),
    "S33 CRLF, tabs, no final newline": (b"0\t1:1\t2:2 \r\n1 1:3", [[1, 2], [3, 0]], [[1, 0], [0, 1]]),
    "S34 byte order mark": (b"\xef\xbb\xbf0 1:1\n", [[1]], [[1]]),
    "S41 comment after a blank": (b"# head\n0 1:1 # 2:3\n1 1:2 #x\n", [[1], [2]], [[1, 0], [0, 1]]),
    "blank lines at the end": (b"0 1:1\n\n \n\n", [[1]], [[1]]),
    "labels alone": (b"1,0\n0 1:1\n", [[0], [1]], [[1, 1], [1, 0]]),
    "signs, points, exponents": (b"0 1:+1 2:-.5 3:2. 4:1e2 5:1E-2\n", [[1, -0.5, 2, 100, np.float32(0.01)]], [[1]]),
    "leading zeros": (b"00 0000000000000000001:1 02:2\n", [[1, 2]], [[1]]),
    "stored zero widens": (b"0 1:1 4:0\n", [[1, 0, 0, 0]], [[1]]),
}


@pytest.mark.parametrize("row", READABLE, ids=list(READABLE))
def test_readable_svmlight(row: str, tmp_path: Path) -> None:
    data, X, Y = READABLE[row]
    assert dense(made(tmp_path, data)) == (X, Y)


def test_oddities_are_counted(tmp_path: Path) -> None:
    ds = made(tmp_path, b"1,1 1:1\n0 3:1 1:2\n 1:1\n2\n")
    assert warnings_of(ds) == {"duplicate_labels": 1, "unsorted_rows": 1, "rows_without_features": 1, "rows_without_labels": 1}


def test_x12_header_with_blanks(tmp_path: Path) -> None:
    assert dense(made(tmp_path, b"1 \t3 2 \t\r\n1 0:1 2:2\n", "xc")) == ([[1, 0, 2]], [[0, 1]])


def test_s44_an_endless_line_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.svm"
    path.write_bytes(b"1 1:1\n" + b"1" * (48 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            list(read_svmlight(path, ReadOptions(max_line_bytes=1 << 20), Tally()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.code, caught.value.line) == ("LINE_TOO_LONG", 2)
    assert peak < 24 << 20, "a block and its rows, not the line"


def test_s44_a_long_line_inside_a_block(tmp_path: Path) -> None:
    path = tmp_path / "long.svm"
    path.write_bytes(b"1 1:1\n1 1:1.0" + b"0" * 100 + b"\n1 1:1\n")
    with pytest.raises(DataError) as caught:
        list(read_svmlight(path, ReadOptions(max_line_bytes=50), Tally()))
    assert (caught.value.code, caught.value.line) == ("LINE_TOO_LONG", 2)


def test_s46_other_feature_counts(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_bytes(b"0 1:1 3:1\n")
    (tmp_path / "test.svm").write_bytes(b"0 5:1\n")
    sources = {"train": tmp_path / "train.svm", "test": tmp_path / "test.svm"}
    with pytest.raises(DataError) as caught:
        build("svmlight", sources, tmp_path / "out")
    assert caught.value.code == "DIM_MISMATCH"
    assert caught.value.file == "test.svm"
    assert "5 features" in str(caught.value)
    assert "3" in caught.value.problem
    assert build("svmlight", sources, tmp_path / "out", BuildOptions(read=ReadOptions(n_features=5))).n_features == 5


@pytest.mark.parametrize(("header", "says"), [("1 6 2", "6 features, 5"), ("1 5 3", "3 labels, 2")])
def test_s46_other_xc_headers(header: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"1 5 2\n0 1:1\n")
    (tmp_path / "test.txt").write_bytes(f"{header}\n0 1:1\n".encode())
    with pytest.raises(DataError) as caught:
        build("xc", {"train": tmp_path / "train.txt", "test": tmp_path / "test.txt"}, tmp_path / "out")
    assert (caught.value.code, caught.value.file) == ("DIM_MISMATCH", "test.txt")
    assert says in str(caught.value)


def test_s47_one_label_everywhere_and_empty_rows_are_warnings(tmp_path: Path) -> None:
    path = tmp_path / "train.svm"
    path.write_bytes(b"0,1\n0,2\n")
    report = check("svmlight", path)
    assert report.good
    assert report.warnings == {"labels_in_every_row": 1, "rows_without_features": 2}


def test_x5_memory_never_follows_a_header(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"1000000000 33554432 33554432\n1 0:1\n")
    tracemalloc.start()
    try:
        report = check("xc", path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [error["code"] for error in report.errors] == ["XC_ROW_COUNT"]
    assert peak < 8 << 20


def two_files(tmp_path: Path, features: bytes, labels: bytes) -> Dataset:
    (tmp_path / "features.txt").write_bytes(features)
    (tmp_path / "labels.txt").write_bytes(labels)
    options = BuildOptions(read=ReadOptions(labels_file=str(tmp_path / "labels.txt")))
    return build("xc", {"train": tmp_path / "features.txt"}, tmp_path / "out", options)


def test_x15_two_files(tmp_path: Path) -> None:
    ds = two_files(tmp_path, b"3 4\n0:1 2:2\n3:3\n1:4\n", b"3 2\n1:1\n0:1 1:1\n0:0 1:1\n")
    assert dense(ds) == ([[1, 0, 2, 0], [0, 0, 0, 3], [0, 4, 0, 0]], [[0, 1], [1, 1], [0, 1]])


@pytest.mark.parametrize(("features", "labels"), [(3, 2), (2, 3)])
def test_x15_two_files_with_other_row_counts(features: int, labels: int, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        two_files(tmp_path, b"%d 4\n" % features + b"0:1\n" * features, b"%d 2\n" % labels + b"1:1\n" * labels)
    assert caught.value.code == "ROW_MISMATCH"
    assert f"{features} rows of features, but {labels} rows of labels" in str(caught.value)
    assert not (tmp_path / "out").exists()


SPLITS = {
    "range": (b"1\n5\n", 2),
    "zero": (b"0\n", 1),
    "twice": (b"1\n2\n1\n", 3),
    "word": (b"1\n2.5\n", 2),
    "long": (b"9" * 30, 1),
}


@pytest.mark.parametrize("row", SPLITS)
def test_x15_split_files(row: str, tmp_path: Path) -> None:
    data, line = SPLITS[row]
    (tmp_path / "train.txt").write_bytes(b"3 4 2\n0 0:1\n0 1:1\n0 2:1\n")
    (tmp_path / "split.txt").write_bytes(data)
    with pytest.raises(DataError) as caught:
        build("xc", {"train": tmp_path / "train.txt"}, tmp_path / "out", BuildOptions(test_rows_file=str(tmp_path / "split.txt")))
    assert (caught.value.code, caught.value.file, caught.value.line) == ("SPLIT_RANGE", "split.txt", line)
    assert not (tmp_path / "out").exists()


def test_split_file_holds_out_its_rows(tmp_path: Path) -> None:
    (tmp_path / "split.txt").write_bytes(b"3\n1\n")
    split = RowSplit(tmp_path / "split.txt")
    assert split.mask(0, 4).tolist() == [True, False, True, False]
    assert split.mask(2, 4).tolist() == [True, False]


def test_c19_a_bomb_is_stopped_by_its_growth(tmp_path: Path) -> None:
    path = tmp_path / "bomb.svm.gz"
    line = b"1 1:1." + b"0" * (1 << 20) + b"\n"
    with gzip.open(path, "wb", compresslevel=6) as out:
        for _ in range(90):
            out.write(line)
    assert path.stat().st_size < 200_000
    report = check("svmlight", path)
    assert [error["code"] for error in report.errors] == ["DECOMPRESSED_LIMIT"]
    assert report.rows < 80


TEXTS = {
    "C3 newline in quotes": (b'text,labels\n"two\r\nlines of ""text""",x\nmore words,y\n', ["x", "y"], {}),
    "C8 byte order mark": (b"\xef\xbb\xbftext,labels\nsome words,x\nmore words,y\n", ["x", "y"], {}),
    "C11 a text without words": (b"text,labels\n??,x\nmore words,y\n", ["x", "y"], {"rows_without_features": 1}),
    "C12 formulas": (b"text,labels\n=cmd()|words,=cmd()\nmore words,y\n", ["=cmd()", "y"], {}),
    "C17 CRLF and LF": (b"text,labels\r\nsome words,x\nmore words,y\r\n", ["x", "y"], {}),
    "C18 words that look like nothing": (b"text,labels\nNaN NULL,NA\nnull words,NULL\n", ["NA", "NULL"], {}),
    "separators and blanks": (
        b"text,labels\nsome words, x | y |x\nmore words,\n",
        ["x", "y"],
        {"duplicate_labels": 1, "rows_without_labels": 1},
    ),
    "blank lines": (b"text,labels\n\nsome words,x\n\n\nmore words,y\n\n", ["x", "y"], {}),
}


@pytest.mark.parametrize("row", TEXTS)
def test_readable_csv(row: str, tmp_path: Path) -> None:
    data, labels, warnings = TEXTS[row]
    ds = made(tmp_path, data, "csv")
    assert ds.label_names.to_pylist() == labels
    assert ds.train.n_rows == 2
    assert warnings_of(ds) == warnings


def test_c13_odd_characters_are_normalised(tmp_path: Path) -> None:
    rows = [
        {"text": "cafe\u0301 zero\u200bwidth \ud800half", "labels": ["e\u0301"]},
        {"text": "café zerowidth half", "labels": ["é"]},
    ]
    ds = made(tmp_path, "".join(json.dumps(row) + "\n" for row in rows).encode(), "jsonl")
    assert ds.label_names.to_pylist() == ["é"]
    assert ds.feature_names.to_pylist() == ["café", "half", "zerowidth"]
    X = ds.train.X.to_scipy().toarray()
    assert X[0].tolist() == X[1].tolist()


def test_c14_labels_beyond_the_file_of_names(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"y\nx\n")
    (tmp_path / "train.csv").write_bytes(b"text,labels\nsome words,x\nmore words,x|z\n")
    options = BuildOptions(label_names_file=str(tmp_path / "labels.txt"))
    with pytest.raises(DataError) as caught:
        build("csv", {"train": tmp_path / "train.csv"}, tmp_path / "out", options)
    assert (caught.value.code, caught.value.file, caught.value.line, caught.value.value) == ("LABEL_UNKNOWN", "train.csv", 3, "z")
    assert not (tmp_path / "out").exists()


def test_tsv_has_no_quotes(tmp_path: Path) -> None:
    ds = made(tmp_path, b'text\tlabels\n5" disk\tx\n"words, more\ty\n', "tsv")
    assert ds.train.n_rows == 2


def test_twenty_errors_then_stop(tmp_path: Path) -> None:
    path = tmp_path / "train.svm"
    path.write_bytes(b"1 1:1\n1 1:x\n" * 50)
    with pytest.raises(DataErrors) as caught:
        list(read_svmlight(path, ReadOptions(), Tally()))
    assert [error.line for error in caught.value.errors] == list(range(2, 42, 2))
    assert "19 more" in str(caught.value)
    assert len(caught.value.as_dict()["errors"]) == 20
    report = check("svmlight", path)
    assert (report.n_bad, len(report.errors), report.rows) == (50, 20, 50)
    assert json.loads(json.dumps(report.as_dict()))["n_bad"] == 50


def test_skip_bad_goes_on_and_reports(tmp_path: Path) -> None:
    ds = made(tmp_path, b"0 1:1\n0 1:x\n\n1 1:2\n-1 1:1\n", skip_bad=True)
    assert dense(ds) == ([[1], [2]], [[1, 0], [0, 1]])
    assert ds.manifest["skipped"] == 3
    reasons = ds.manifest["source"]["parts"]["train"]["skipped_reasons"]
    assert [(reason["code"], reason["line"]) for reason in reasons] == [
        ("SVM_BAD_VALUE", 2),
        ("SVM_BLANK_LINE", 3),
        ("LABEL_RANGE", 5),
    ]


def test_skip_bad_leaves_nothing_of_a_file_of_errors(tmp_path: Path) -> None:
    with pytest.raises(DataErrors) as caught:
        made(tmp_path, b"0 1:x\n0 1:y\n", skip_bad=True)
    assert len(caught.value.errors) == 2
    assert not (tmp_path / "out").exists()


def test_skip_bad_counts_towards_the_header(tmp_path: Path) -> None:
    ds = made(tmp_path, b"3 2 2\n0 0:1\n0 0:x\n1 1:1\n", "xc", skip_bad=True)
    assert ds.train.n_rows == 2
    path = tmp_path / "more.txt"
    path.write_bytes(b"2 2 2\n0 0:1\n0 0:x\n1 1:1\n")
    found = [(error["code"], error["line"]) for error in check("xc", path).errors]
    assert found == [("SVM_BAD_VALUE", 3), ("XC_ROW_COUNT", 4)]


@pytest.mark.parametrize(
    "options", [{"max_errors": 0}, {"n_features": -1}, {"delimiter": ";;"}, {"skip_bad": "yes"}, {"text_fields": 3}, {"no": 1}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        ReadOptions.from_dict(options)
