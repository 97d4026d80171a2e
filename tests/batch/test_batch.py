"""Batch predictions: all input formats, equality with the predictor, and reproducible bytes."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.batch_inputs import D, digests, run, sparse, table_of, written
from tests.support.live_service import plain_model, text_model
from xcray.arrays import csr_from
from xcray.batch import BatchPredictSpec, predict_batch, read_manifest
from xcray.batch.lines import plan_lines
from xcray.data.readers.error_log import DataErrors
from xcray.errors import Conflict, Corrupt, DataError, InputError, NotFound, ParameterError, Stopped
from xcray.predict import Predictor
from xcray.storage.atomic import sha256_file
from xcray.workers.pool import StopFlag

WORDS = ("rows", "csv", "json", "file", "socket", "write", "listen", "naïve")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model with D numbered features."""
    return plain_model(tmp_path_factory.mktemp("plain") / "model", D)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Return a model that reads text."""
    return text_model(tmp_path_factory.mktemp("text") / "model")


def svmlight(X, path, base=1):
    """Write rows as svmlight, each with one label."""
    lines = [
        "1 " + " ".join(f"{j + base}:{float(v)!r}" for j, v in zip(*X.row(i), strict=True))
        for i in range(X.n_rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def texts(n):
    """Return texts of a few words; one of them is empty."""
    rng = np.random.default_rng(1)
    return ["" if i == 3 else " ".join(rng.choice(WORDS, 1 + i % 5)) for i in range(n)]


def check_answers(result, model, rows, k=3, **among):
    """Check that the results are bit-identical to those of the predictor."""
    named = Predictor(model).scored_labels(Predictor(model).search(rows, k, **among).top)
    assert result.column("labels").to_pylist() == [[one.label for one in row] for row in named]
    assert result.column("scores").to_pylist() == [[one.score for one in row] for row in named]


# --- input formats


@pytest.mark.parametrize("groups", [5, 1000])
def test_sparse_rows_of_parquet(tmp_path, model, groups):
    X = sparse(40)
    manifest, result = run(
        tmp_path, model, written(tmp_path / "in.parquet", table_of(X), row_group_size=groups)
    )
    check_answers(result, model, X)
    assert result.column("row").to_pylist() == list(range(40))
    assert [(part["first_row"], part["rows"]) for part in manifest["parts"]] == [
        (0, 7),
        (7, 7),
        (14, 7),
        (21, 7),
        (28, 7),
        (35, 5),
    ]
    assert (manifest["rows"], manifest["answered"], manifest["skipped"]) == (40, 40, 0)
    assert manifest["input"][0] | {"bytes": 0} == {
        "name": "in.parquet",
        "bytes": 0,
        "sha256": sha256_file(tmp_path / "in.parquet"),
        "rows": 40,
    }
    assert manifest["model"]["sha256"] == model.sha256
    assert result.schema.types == [pa.int64(), pa.list_(pa.string()), pa.list_(pa.float64())]
    assert read_manifest(tmp_path / "out", verify=True) == manifest


@pytest.mark.parametrize(
    "kind", [pa.large_list(pa.float64()), pa.list_(pa.float32(), D), pa.list_(pa.int16())], ids=str
)
def test_dense_rows_of_parquet(tmp_path, model, kind):
    rows = np.round(sparse(20).to_scipy().toarray())
    column = pa.array([[float(v) for v in row] for row in rows], pa.list_(pa.float64())).cast(kind)
    _, result = run(tmp_path, model, written(tmp_path / "in.parquet", pa.table({"values": column})))
    check_answers(result, model, csr_from(rows))


def test_texts_of_parquet_and_ids(tmp_path, reader):
    inputs = texts(30)
    columns = {
        "head": inputs,
        "tail": pa.array(["csv"] * 30).dictionary_encode(),
        "key": [f"k{i}" for i in range(30)],
    }
    path = written(tmp_path / "in.parquet", pa.table(columns))
    _, result = run(tmp_path, reader, path, text_fields=("head", "tail"), id_field="key")
    check_answers(result, reader, [f"{text} csv" for text in inputs])
    assert result.column("id").to_pylist() == columns["key"]


def test_a_text_column_is_found_and_indices_can_have_any_order(tmp_path, model, reader):
    inputs, X = texts(9), sparse(9)
    turned = table_of(csr_from(X))
    turned = pa.table(
        {
            name: [row[::-1] for row in turned.column(name).to_pylist()]
            for name in ("indices", "values")
        }
    )
    both = written(
        tmp_path / "in.parquet", turned.append_column("text", pa.array(inputs, pa.large_string()))
    )
    check_answers(run(tmp_path, reader, both, "a")[1], reader, inputs)
    check_answers(run(tmp_path, model, both, "b")[1], model, X)


def test_a_directory_of_parquet_files_is_one_input(tmp_path, model):
    X, folder = sparse(25), tmp_path / "in"
    folder.mkdir()
    table = table_of(X, key=np.arange(25, dtype=np.uint8))
    written(folder / "b.parquet", table.slice(10))
    written(folder / "a.parquet", table.slice(0, 10))
    written(folder / "_old.parquet", table)
    manifest, result = run(tmp_path, model, folder, id_field="key")
    check_answers(result, model, X)
    assert result.column("id").to_pylist() == list(range(25))
    assert [part["first_row"] for part in manifest["parts"]] == [0, 7, 10, 17, 24]
    _, again = run(tmp_path, model, folder, "numbered")
    assert again.column("row").to_pylist() == list(range(25))


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_svmlight_lines_with_comments_byte_order_mark_and_compression(tmp_path, model, suffix):
    X = sparse(30)
    lines = svmlight(X, tmp_path / "plain").read_text().splitlines()
    lines[5:5] = ["# a comment", "#"]
    data = b"\xef\xbb\xbf" + "\r\n".join(["# head", *lines, "", " "]).encode()
    path = tmp_path / f"in.svmlight{suffix}"
    path.write_bytes({"": lambda x: x, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix](data))
    manifest, result = run(tmp_path, model, path)
    check_answers(result, model, X)
    assert result.column("row").to_pylist() == list(range(30))
    assert manifest["input"][0]["sha256"] == sha256_file(path)
    assert not list((tmp_path / "out.run").glob("input*"))


def test_xc_zero_based_svmlight_and_rows_without_labels(tmp_path, model):
    X = sparse(20)
    plain = svmlight(X, tmp_path / "in.svm", base=0)
    check_answers(run(tmp_path, model, plain, "a", zero_based=True)[1], model, X)
    xc = tmp_path / "in.txt"
    xc.write_text(f"20 {D} 4\n" + plain.read_text())
    check_answers(run(tmp_path, model, xc, "b", format="xc")[1], model, X)
    bare = tmp_path / "bare.txt"
    bare.write_text(
        "".join(
            line[1:] for line in svmlight(X, tmp_path / "one").read_text().splitlines(True)
        ).replace(" \n", "1 \n")
    )
    check_answers(run(tmp_path, model, bare, "c", format="svmlight")[1], model, X)


def test_xc_files_of_features_alone_and_with_empty_rows(tmp_path, model):
    dense = sparse(20).to_scipy().toarray()
    dense[[3, 4, 19]] = 0
    X = csr_from(dense)
    lines = [
        line[1:].strip() for line in svmlight(X, tmp_path / "in", base=0).read_text().split("\n")
    ]
    for name, header, mark in (("a", f"20 {D} 4", " "), ("b", f"20 {D}", "")):
        rows = "\n".join(mark + line if line else "" for line in lines)
        path = tmp_path / f"{name}.txt"
        path.write_text(f"{header}\n{rows}\n\n")
        check_answers(run(tmp_path, model, path, name, format="xc", part_rows=4)[1], model, X)
    path.write_text(f"1 {D + 1}\n0:1\n")
    with pytest.raises(DataError, match=f"{D + 1} features, {D} are expected"):
        run(tmp_path, model, path, "c", format="xc")


def test_lines_of_fasttext_are_texts_without_their_labels(tmp_path, reader):
    path = tmp_path / "in.txt"
    path.write_text("__label__a sockets and tables\n\ndates __label__b\n")
    result = run(tmp_path, reader, path, "a", format="fasttext")[1]
    check_answers(result, reader, ["sockets and tables", "dates"])
    with pytest.raises(DataError, match="looks like fastText"):
        run(tmp_path, reader, path, "b", format="text")


def test_json_lines_of_each_form_and_lines_of_text(tmp_path, model, reader):
    X, inputs, path = sparse(20), texts(20), tmp_path / "in.jsonl"
    path.write_text(
        "\n\n".join(json.dumps({"text": text, "key": i}) for i, text in enumerate(inputs)) + "\n"
    )
    _, result = run(tmp_path, reader, path, "a", id_field="key")
    check_answers(result, reader, inputs)
    assert result.column("id").to_pylist() == [str(i) for i in range(20)]
    rows = table_of(X).to_pylist()
    path.write_text("\n".join(json.dumps(row) for row in rows))
    check_answers(run(tmp_path, model, path, "b")[1], model, X)
    path.write_text(
        "\n".join(json.dumps({"values": row}) for row in X.to_scipy().toarray().tolist())
    )
    check_answers(run(tmp_path, model, path, "c")[1], model, X)
    path.write_text("\n".join(inputs))
    check_answers(run(tmp_path, reader, path, "d", format="text")[1], reader, inputs)


def test_an_empty_parquet_file_gives_an_empty_output_with_columns(tmp_path, model):
    manifest, result = run(
        tmp_path, model, written(tmp_path / "in.parquet", table_of(sparse(5)).slice(0, 0))
    )
    assert (manifest["rows"], len(manifest["parts"]), result.num_rows) == (0, 1, 0)
    assert result.column_names == ["row", "labels", "scores"]


# --- options


def test_allow_deny_sets_and_certificate(tmp_path, model):
    X = sparse(10)
    path = written(tmp_path / "in.parquet", table_of(X))
    sets = {"files": ["csv", "json"]}
    _, result = run(
        tmp_path,
        model,
        path,
        allow=("set:files", "io"),
        deny=("json",),
        label_sets=sets,
        certificate=True,
    )
    check_answers(result, model, X, allow=["csv", "io"])
    assert result.column("exact").to_pylist() == [True] * 10
    assert result.schema.field("bound_gap").type == pa.float64()
    with pytest.raises(NotFound, match="no such"):
        run(tmp_path, model, path, "b", allow=("no such",))


def test_probabilities_need_a_calibrated_model(tmp_path, model):
    path = written(tmp_path / "in.parquet", table_of(sparse(4)))
    with pytest.raises(InputError, match="calibrate"):
        run(tmp_path, model, path, probabilities=True)
    with pytest.raises(InputError, match="calibrate"):
        run(tmp_path, model, path, min_probability=0.5)
    with pytest.raises(ParameterError, match="xcray thresholds"):
        run(tmp_path, model, path, label_thresholds=True)


def test_labels_below_the_threshold_are_left_out(tmp_path, model):
    X = sparse(20)
    path = written(tmp_path / "in.parquet", table_of(X))
    _, result = run(tmp_path, model, path, min_score=0.5)
    answer = Predictor(model).search(X, 3)
    named = Predictor(model).scored_labels(answer.top, min_score=0.5)
    assert {len(row) for row in named} == {1, 2, 3}
    assert result.column("labels").to_pylist() == [[one.label for one in row] for row in named]
    assert result.column("scores").to_pylist() == [[one.score for one in row] for row in named]


def test_the_size_of_a_part_is_limited_by_its_output(model):
    from xcray.batch.plan import rows_per_part

    assert [rows_per_part(n, 5) for n in (1, 10**5, 10**6, 10**9)] == [4096, 4096, 15625, 65536]
    assert rows_per_part(10**9, 1000) == 4194
    assert [rows_per_part(10**6, 5, expected) for expected in (1, 500, 10**6)] == [10, 500, 10**6]
    # 10,000 labels for 10**6 rows would not fit in memory.
    assert rows_per_part(10**6, 10_000, 10**6) == 1677


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"format": "xlsx"}, "one of parquet"),
        ({"top_k": 0}, "at least 1"),
        ({"top_k": True}, "whole number"),
        ({"pool": "cloud"}, "serial, threads, ray"),
        ({"on_error": "cry"}, "fail, skip"),
        ({"indices_field": "i"}, "values_field"),
        ({"text_fields": ("a",), "values_field": "v"}, "not both"),
        ({"text_fields": ()}, "list of 1 to 100"),
        ({"allow": "csv"}, "list of 1 to"),
        ({"label_sets": {"a": "b"}}, "label_sets"),
        ({"input": "rows.dat"}, "does not determine"),
        ({"input": "a.svm", "id_field": "key"}, "has no named fields"),
        ({"secret": 1}, "unknown key"),
        ({"model": None}, "needs `model`"),
    ],
)
def test_a_spec_is_checked_at_construction(query, words):
    with pytest.raises(ParameterError, match=words):
        BatchPredictSpec.from_dict({"model": "m", "input": "a.parquet", **query})


def test_a_spec_is_json_and_back():
    spec = BatchPredictSpec(
        "m", "a.jsonl.gz", allow=("a", "1"), text_fields=("t",), label_sets={"s": ["x"]}
    )
    assert BatchPredictSpec.from_dict(
        json.loads(json.dumps(spec.as_dict()))
    ) == BatchPredictSpec.from_dict(spec.as_dict())
    assert spec.format == "jsonl"


# --- bad rows

BAD = {
    "null list": ({"indices": [[0], None, [1]], "values": [[1.0], [1.0], [1.0]]}, "NULL_VALUE"),
    "null entry": ({"indices": [[0], [1], [1]], "values": [[1.0], [None], [1.0]]}, "NULL_VALUE"),
    "unequal": ({"indices": [[0], [1, 2], [1]], "values": [[1.0], [1.0], [1.0]]}, "ROW_LENGTHS"),
    "too large": ({"indices": [[0], [D], [1]], "values": [[1.0], [1.0], [1.0]]}, "INDEX_RANGE"),
    "negative": ({"indices": [[0], [-1], [1]], "values": [[1.0], [1.0], [1.0]]}, "INDEX_RANGE"),
    "twice": (
        {"indices": [[0], [2, 1, 2], [1]], "values": [[1.0], [1.0, 2.0, 3.0], [1.0]]},
        "DUP_INDEX",
    ),
    "nan": ({"indices": [[0], [1], [1]], "values": [[1.0], [float("nan")], [1.0]]}, "NOT_FINITE"),
    "beyond float32": (
        {"indices": [[0], [1], [1]], "values": [[1.0], [1e39], [1.0]]},
        "NOT_FINITE",
    ),
    "short": ({"values": [[1.0] * D, [1.0], [1.0] * D]}, "DIM"),
    "dense null": ({"values": [[1.0] * D, None, [1.0] * D]}, "NULL_VALUE"),
    "dense inf": (
        {"values": [[1.0] * D, [1.0] * (D - 1) + [float("inf")], [1.0] * D]},
        "NOT_FINITE",
    ),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_bad_row_of_parquet_is_named_or_skipped_and_counted(tmp_path, model, case):
    columns, code = BAD[case]
    types = {"indices": pa.list_(pa.int64()), "values": pa.list_(pa.float64())}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    path = written(tmp_path / "in.parquet", table)
    with pytest.raises(DataError, match="row 1: ") as raised:
        run(tmp_path, model, path)
    assert raised.value.code == code
    manifest, result = run(tmp_path, model, path, "skipping", on_error="skip")
    assert result.column("row").to_pylist() == [0, 2]
    assert (manifest["rows"], manifest["answered"], manifest["skipped"]) == (3, 2, 1)
    assert [(reason["code"], reason["row"]) for reason in manifest["skipped_reasons"]] == [
        (code, 1)
    ]
    check_answers(result, model, rows_of(table.take([0, 2])))


def rows_of(table):
    """Return the rows of a valid table, decoded row by row."""
    X = np.zeros((table.num_rows, D), np.float32)
    for i, row in enumerate(table.to_pylist()):
        X[i, row.get("indices", range(D))] = row["values"]
    return csr_from(X)


def test_bad_rows_of_many_slices_are_counted_and_the_first_twenty_reported(tmp_path, model):
    X = sparse(5000)
    table = table_of(X)
    broken = [
        None if i % 50 == 7 else row for i, row in enumerate(table.column("indices").to_pylist())
    ]
    table = table.set_column(0, "indices", pa.array(broken, pa.list_(pa.int64())))
    path = written(tmp_path / "in.parquet", table)
    manifest, result = run(tmp_path, model, path, on_error="skip", part_rows=3000)
    assert result.column("row").to_pylist() == [i for i in range(5000) if i % 50 != 7]
    assert [part["skipped"] for part in manifest["parts"]] == [60, 40]
    assert [reason["row"] for reason in manifest["skipped_reasons"]] == [
        7 + 50 * i for i in range(20)
    ]
    with pytest.raises(DataError, match="row 7: ") as raised:
        run(tmp_path, model, path, "b")
    assert len(raised.value.errors) == 1  # one part ends with row 6, the next with row 13


@pytest.mark.parametrize(
    ("line", "code", "line_number"),
    [
        ("1 3:x", "SVM_BAD_VALUE", 9),
        ("1 9:1.0", "SVM_INDEX_RANGE", 9),
        ("1 3:nan", "SVM_NOT_FINITE", 9),
        ("1 2:1 2:1", "SVM_DUP_INDEX", 9),
        ("\n1 3:oops", "SVM_BAD_VALUE", 10),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path, model, line, code, line_number):
    X = sparse(30)
    lines = svmlight(X, tmp_path / "plain").read_text().splitlines()
    lines[8] = line
    path = tmp_path / "in.svm"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as raised:
        run(tmp_path, model, path)
    assert (line_number, code) in [(error.line, error.code) for error in raised.value.errors]
    _, result = run(tmp_path, model, path, "skipping", on_error="skip")
    good = [i for i in range(30) if i != 8]
    assert result.column("row").to_pylist() == good
    check_answers(result, model, csr_from(X.to_scipy()[good]))


def test_bad_lines_of_json_and_text(tmp_path, reader):
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'{"text": "csv", "n": 1}\n{"text": 7}\n{"txt": "a"}\n\n{"text": "a", "text": "b"}\n\xff\n[1]\n{"text": "json"}\n'
    )
    manifest, result = run(tmp_path, reader, path, on_error="skip")
    check_answers(result, reader, ["csv", "json"])
    assert result.column("row").to_pylist() == [0, 6]
    reasons = [(reason["line"], reason["code"]) for reason in manifest["skipped_reasons"]]
    assert reasons == [
        (2, "FIELD_TYPE"),
        (3, "FIELD_MISSING"),
        (5, "JSON_DUP_KEY"),
        (6, "ENCODING"),
        (7, "FIELD_TYPE"),
    ]
    path.write_bytes(b"csv\n\xfe\n\njson")
    manifest, result = run(tmp_path, reader, path, "b", format="text", on_error="skip")
    check_answers(result, reader, ["csv", "", "json"])
    assert (result.column("row").to_pylist(), manifest["skipped"]) == ([0, 2, 3], 1)
    nulls = written(tmp_path / "in.parquet", pa.table({"text": ["csv", None]}))
    with pytest.raises(DataError, match="row 1: the text is null"):
        run(tmp_path, reader, nulls, "c")


@pytest.mark.parametrize(
    ("content", "format", "code"),
    [
        (b"not parquet at all", "parquet", "FORMAT_MISMATCH"),
        (b"PAR1 and then nothing PAR1", "parquet", "PARQUET_INVALID"),
        (b"", "svmlight", "EMPTY_FILE"),
        (b"\n# nothing\n", "svmlight", "EMPTY_FILE"),
        (b"3 6 4\n1 1:1\n", "svmlight", "FORMAT_MISMATCH"),
        (b"3 6 4\n1 1:1\n", "xc", "XC_ROW_COUNT"),
        (b"1 7 4\n1 1:1\n", "xc", "DIM_MISMATCH"),
        (b"\x1f\x8b\x08 packed", "svmlight", "COMPRESSED"),
        (b'{"a": 1}\n', "jsonl", "FIELD_MISSING"),
        (b"nope\n", "jsonl", "JSON_INVALID"),
    ],
)
def test_an_invalid_file_is_rejected_with_its_code(tmp_path, model, content, format, code):
    path = tmp_path / "in"
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        run(tmp_path, model, path, format=format)
    assert raised.value.code == code
    assert not (tmp_path / "out").exists()


def test_columns_of_other_types_and_a_model_that_reads_no_text(tmp_path, model):
    path = written(
        tmp_path / "in.parquet", pa.table({"values": [1.0], "text": ["a"], "indices": [["a"]]})
    )
    with pytest.raises(DataError, match="column 'indices' is list"):
        run(tmp_path, model, path, "a")
    with pytest.raises(DataError, match="no column 'w'"):
        run(tmp_path, model, path, "b", values_field="w")
    with pytest.raises(InputError, match="no text pipeline"):
        run(tmp_path, model, path, "c", text_fields=("text",))
    with pytest.raises(NotFound):
        run(tmp_path, model, tmp_path / "nowhere.parquet", "d")


@pytest.mark.parametrize("block", [32, 61, 1 << 20])
def test_rows_of_lines_keep_their_numbers_beside_bad_ones(tmp_path, model, monkeypatch, block):
    """With blocks of a few bytes, lines cross block borders, and some have only bad lines."""
    monkeypatch.setattr("xcray.data.readers.blocks.BLOCK_BYTES", block)
    monkeypatch.setattr("xcray.data.readers.blocks.HEAD_BYTES", block)
    X, bad = sparse(50), [0, 1, 7, 8, 9, 10, 11, 30, 49]
    lines = svmlight(X, tmp_path / "plain").read_text().splitlines()
    for i in bad:
        lines[i] = "1 9:1.0"
    path = tmp_path / "in.svm"
    path.write_text("# head\n" + "\n".join(lines))
    manifest, result = run(tmp_path, model, path, on_error="skip")
    good = [i for i in range(50) if i not in bad]
    assert result.column("row").to_pylist() == good
    check_answers(result, model, csr_from(X.to_scipy()[good]))
    assert [part["rows_read"] for part in manifest["parts"]] == [7] * 7 + [1]
    assert [part["skipped"] for part in manifest["parts"]] == [2, 5, 0, 0, 1, 0, 0, 1]
    assert [reason["line"] for reason in manifest["skipped_reasons"]] == [i + 2 for i in bad]


def test_bad_features_of_json_lines_are_skipped_in_their_order(tmp_path, model, monkeypatch):
    monkeypatch.setattr("xcray.batch.lines.MAX_GROUP_ROWS", 3)
    X, path = sparse(8), tmp_path / "in.jsonl"
    lines = [json.dumps(row | {"key": f"k{i}"}) for i, row in enumerate(table_of(X).to_pylist())]
    lines[1] = '{"indices": [9], "values": [1.0], "key": "k1"}'
    lines[2] = "no JSON"
    lines[7] = '{"indices": [1], "values": [1.0, 2.0], "key": "k7"}'
    path.write_text("\n".join(lines))
    manifest, result = run(tmp_path, model, path, on_error="skip", id_field="key", part_rows=2)
    good = [0, 3, 4, 5, 6]
    assert result.column("id").to_pylist() == [f"k{i}" for i in good]
    check_answers(result, model, csr_from(X.to_scipy()[good]))
    reasons = [(reason["line"], reason["code"]) for reason in manifest["skipped_reasons"]]
    assert reasons == [(2, "INDEX_RANGE"), (3, "JSON_INVALID"), (8, "ROW_LENGTHS")]


def test_numbers_beyond_the_exact_integers_are_values(tmp_path, model):
    rows, path = [[1e30, 2**53 + 1, 3, 0.5, 0, 0]], tmp_path / "in.jsonl"
    path.write_text(json.dumps({"values": rows[0]}))
    check_answers(run(tmp_path, model, path)[1], model, csr_from(np.array(rows, np.float32)))


def test_errors_of_values_are_reported_in_the_order_of_the_lines(tmp_path, model):
    path = tmp_path / "in.jsonl"
    path.write_text('{"values": [1]}\nno JSON\n')
    with pytest.raises(DataErrors) as raised:
        run(tmp_path, model, path)
    assert [(each.line, each.code) for each in raised.value.errors] == [
        (1, "DIM"),
        (2, "JSON_INVALID"),
    ]
    path.write_text("2 6 2\n0 0:x\n0 1:1\n0 1:1\n")
    with pytest.raises(DataErrors) as raised:
        run(tmp_path, model, path, format="xc")
    assert [each.line for each in raised.value.errors] == [2, 4]


def test_many_blank_lines_of_svmlight_are_no_rows(tmp_path, model):
    path = tmp_path / "in.svm"
    path.write_text("1 1:1\n" + "\n" * 30 + "1 2:1\n")
    manifest, result = run(tmp_path, model, path, on_error="skip")
    assert (manifest["rows"], result.column("row").to_pylist()) == (2, [0, 1])


# --- the same bytes for every schedule and after every failure


@pytest.fixture
def big(tmp_path):
    """Return an input with several row groups."""
    return written(tmp_path / "in.parquet", table_of(sparse(120)), row_group_size=32)


def test_pool_and_workers_change_no_byte(tmp_path, model, big):
    results = [
        digests(run(tmp_path, model, big, name, **how)[0])
        for name, how in {
            "a": {},
            "b": {"pool": "threads", "workers": 1},
            "c": {"pool": "threads", "workers": 3},
        }.items()
    ]
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 18


def test_predictions_do_not_depend_on_the_part_size(tmp_path, model, big):
    tables = [run(tmp_path, model, big, f"cut{size}", part_rows=size)[1] for size in (5, 32, 1000)]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def stopped_after(parts, tmp_path, model, big, run_dir):
    """Run a prediction that is stopped when `parts` parts are done."""
    flag = StopFlag()

    def progress(step):
        if step.done >= parts * 7:
            flag.set()

    spec = BatchPredictSpec(str(model.path), str(big), pool="serial", top_k=3, part_rows=7)
    with pytest.raises(Stopped):
        predict_batch(spec, run_dir=run_dir, out=tmp_path / "out", progress=progress, stop=flag)


def test_a_stopped_run_resumes_and_rebuilds_damaged_parts(tmp_path, model, big):
    whole, _ = run(tmp_path, model, big, "whole")
    stopped_after(10, tmp_path, model, big, tmp_path / "out.run")
    assert not (tmp_path / "out").exists()
    selection = sorted((tmp_path / "out.run").glob("part-*.parquet"))
    assert 10 <= len(selection) < 18
    selection[0].write_bytes(selection[0].read_bytes()[:-1])
    selection[1].rename(selection[1].with_name("part-99999-" + "0" * 32 + ".parquet"))
    manifest, _ = run(tmp_path, model, big)
    assert digests(manifest) == digests(whole)
    assert manifest["report"]["rows_kept"] == 7 * (len(selection) - 2)
    assert len(manifest["report"]["damaged_parts"]) == 2


def test_another_spec_cannot_use_the_same_run_directory(tmp_path, model, big):
    stopped_after(2, tmp_path, model, big, tmp_path / "out.run")
    with pytest.raises(Conflict, match="other top_k"):
        run(tmp_path, model, big, top_k=2)
    written(big, table_of(sparse(120, seed=9)))
    with pytest.raises(Conflict, match="other files"):
        run(tmp_path, model, big)


def test_an_output_is_never_overwritten_and_a_changed_one_is_found(tmp_path, model, big):
    run(tmp_path, model, big)
    with pytest.raises(Conflict, match="exists already"):
        run(tmp_path, model, big)
    part = tmp_path / "out" / "part-00003.parquet"
    part.write_bytes(part.read_bytes()[:-4] + b"ABCD")
    with pytest.raises(Corrupt, match=r"part-00003.parquet"):
        read_manifest(tmp_path / "out", verify=True)


def test_an_input_that_changes_during_the_run_is_rejected(tmp_path, model, big):
    spec = BatchPredictSpec(str(model.path), str(big), pool="serial", part_rows=7)

    def progress(step):
        if step.phase == "PUBLISHING":
            os.utime(big, ns=(1, 1))

    with pytest.raises(InputError, match="was changed"):
        predict_batch(spec, run_dir=tmp_path / "run", out=tmp_path / "out", progress=progress)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["input.svm", "input.parquet"])
def test_an_input_in_the_run_directory_is_kept(tmp_path, model, name):
    """Also after an error, when a run directory without finished work is removed."""
    path = tmp_path / "out.run" / name
    path.parent.mkdir()
    (written(path, table_of(sparse(3))) if "parquet" in name else svmlight(sparse(3), path))
    content = path.read_bytes()
    with pytest.raises(DataError):
        run(tmp_path, model, path, format="xc")
    run(tmp_path, model, path)
    assert path.read_bytes() == content


def test_lines_that_change_while_they_are_copied_are_rejected(tmp_path, model):
    path = svmlight(sparse(3), tmp_path / "in.svm")
    spec = BatchPredictSpec(str(model.path), str(path))

    def change():
        os.utime(path, (1, 1))

    with pytest.raises(InputError, match="was changed"):
        plan_lines(spec, None, D, tmp_path / "rows", change)


def test_two_attempts_copy_the_lines_at_the_same_time(tmp_path, model):
    path = svmlight(sparse(9), tmp_path / "in.svm")
    spec = BatchPredictSpec(str(model.path), str(path))
    calls, plans = [], []

    def attempt():
        calls.append(None)
        if len(calls) == 2:  # the first rows are written
            plans.append(plan_lines(spec, None, D, tmp_path / "rows"))

    assert plan_lines(spec, None, D, tmp_path / "rows", attempt) == plans[0]
    assert pq.read_table(tmp_path / "rows").num_rows == 9
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.svm", "rows"]


def test_two_runs_that_publish_the_same_output_agree(tmp_path, model, big):
    """The slower run returns the output of the faster one; another run's output is a conflict."""
    spec, out = (
        BatchPredictSpec(str(model.path), str(big), pool="serial", top_k=3, part_rows=7),
        tmp_path / "out",
    )
    quick = []

    def check():
        if not quick:
            quick.append(predict_batch(spec, run_dir=tmp_path / "quick", out=out))

    slow = predict_batch(spec, run_dir=tmp_path / "slow", out=out, check=check)
    assert slow.manifest == quick[0].manifest

    def other():
        (tmp_path / "third").mkdir()
        (tmp_path / "third" / "file").touch()

    with pytest.raises(Conflict, match="third exists"):
        predict_batch(spec, run_dir=tmp_path / "run", out=tmp_path / "third", check=other)


def test_sigkill_loses_no_finished_part(tmp_path, model, big):
    whole, _ = run(tmp_path, model, big, "whole")
    code = f"""
import sys, time
from pathlib import Path
from xcray.batch import BatchPredictSpec, predict_batch
def progress(step):
    print(step.done, flush=True)
    time.sleep(600 if step.done >= 112 else 0.02)  # the kill can come late
spec = BatchPredictSpec({str(model.path)!r}, {str(big)!r}, pool="serial", top_k=3, part_rows=7)
predict_batch(
    spec,
    run_dir=Path({str(tmp_path / "out.run")!r}),
    out=Path({str(tmp_path / "out")!r}),
    progress=progress,
)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 70:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    manifest, _ = run(tmp_path, model, big)
    assert manifest["report"]["rows_kept"] >= 70
    assert digests(manifest) == digests(whole)


def test_a_stop_takes_effect_within_a_part(tmp_path, model, monkeypatch):
    """A flag set in the first slice of a part stops the run before the next slice."""
    monkeypatch.setattr("xcray.batch.chunk_task.ROWS_PER_STEP", 1)
    path, flag, values = written(tmp_path / "in.parquet", table_of(sparse(2000))), StopFlag(), []
    whole = Predictor.search

    def answer(self, *rows, **how):
        values.append(1)
        flag.set()
        return whole(self, *rows, **how)

    monkeypatch.setattr(Predictor, "search", answer)
    spec = BatchPredictSpec(str(model.path), str(path), pool="serial", part_rows=2000)
    with pytest.raises(Stopped):
        predict_batch(spec, run_dir=tmp_path / "run", out=tmp_path / "out", stop=flag)
    assert len(values) == 1


def test_memory_is_bounded_by_slices_not_by_the_file(tmp_path, model, monkeypatch):
    """A worker holds slices of the file and never builds a table of a whole part."""
    from xcray.batch import parquet

    sizes = []
    whole = parquet._decode_rows

    def rows(batch, *rest):
        sizes.append(batch.num_rows)
        return whole(batch, *rest)

    monkeypatch.setattr(parquet, "_decode_rows", rows)
    monkeypatch.setattr(parquet, "MAX_SLICE_ROWS", 16)
    run(tmp_path, model, written(tmp_path / "in.parquet", table_of(sparse(500))), part_rows=500)
    assert max(sizes) == 16
    assert sum(sizes) == 500


def test_a_row_group_is_decoded_once_per_worker(tmp_path, model, monkeypatch):
    """Parts in any order give correct rows; the file is reopened only to go back."""
    from xcray.batch.parquet import ParquetCursor, plan_parquet

    X = sparse(100)
    path = written(tmp_path / "in.parquet", table_of(X), row_group_size=40)
    plan = plan_parquet(BatchPredictSpec(str(model.path), str(path), part_rows=7), None)
    opened, whole = [], ParquetCursor._open_at
    monkeypatch.setattr(
        ParquetCursor,
        "_open_at",
        lambda self, *inputs: (opened.append(inputs[2]), whole(self, *inputs))[1],
    )
    monkeypatch.setattr("xcray.batch.parquet.MAX_SLICE_ROWS", 3)
    cursor = ParquetCursor()
    ranges = [(0, 7), (14, 21), (21, 28), (35, 42), (7, 14), (90, 100), (98, 99), (0, 100)]
    for first, stop in ranges:
        results = list(cursor.read(plan.files[0], plan.schema, first, stop, D))
        rows = [row for _, batch in results for row in batch.to_pylist()]
        assert rows == table_of(X).slice(first, stop - first).to_pylist()
        assert [start for start, _ in results][:1] == [first]
    assert opened == [0, 7, 90, 98, 0]


def test_errors_keep_all_fields_between_processes():
    """A worker's error keeps its class, message, place and hint when it is raised in the driver."""
    first = DataError("A", "is bad", file="f", line=3, value="v", hint="fix it")
    for error in (
        first,
        DataErrors([first, DataError("B", "too")]),
        ParameterError("k is 0", hint="more", limit=1),
    ):
        result = copy.copy(error)  # like unpickling
        assert type(result) is type(error)
        assert (str(result), result.as_dict()) == (str(error), error.as_dict())


def test_progress_counts_rows(tmp_path, model, big):
    steps = []
    spec = BatchPredictSpec(str(model.path), str(big), pool="threads", workers=2, part_rows=50)
    predict_batch(spec, run_dir=tmp_path / "run", out=tmp_path / "out", progress=steps.append)
    assert [step.phase for step in steps][:: len(steps) - 1] == ["LOADING", "PUBLISHING"]
    assert {step.total for step in steps if step.phase == "PREDICTING"} == {120}
    assert max(step.done for step in steps if step.phase == "PREDICTING") == 120
    assert steps[-2].rate > 0
