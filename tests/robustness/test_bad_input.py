"""Bad input outside the catalogue: memory of readers, two files, collected and skipped errors."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.badinput import json_lines, numpy_arrays, parquet, svmlight, tables, xc
from tests.robustness.badinput.memory import CASES
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.readers.error_codes import CODES
from xcray.data.readers.error_log import DataErrors, ErrorCollector
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.svmlight import read_svmlight
from xcray.data.splits import RowSplit
from xcray.errors import ParameterError


def build_file(
    tmp_path: Path, data: bytes, format: str = "svmlight", name: str = "train.txt", **options: Any
) -> Dataset:
    path = tmp_path / name
    path.write_bytes(data)
    return build(
        format, {"train": path}, tmp_path / "out", BuildOptions(read=ReadOptions(**options))
    )


def dense(ds: Dataset) -> tuple[Any, Any]:
    return ds.train.X.to_scipy().toarray().tolist(), ds.train.Y.to_scipy().toarray().astype(
        int
    ).tolist()


def warnings_of(ds: Dataset) -> dict[str, int]:
    return dict(ds.manifest["source"]["parts"]["train"]["warnings"])


def test_irregular_rows_are_counted_as_warnings(tmp_path: Path) -> None:
    ds = build_file(tmp_path, b"1,1 1:1\n0 3:1 1:2\n 1:1\n2\n")
    assert warnings_of(ds) == {
        "duplicate_labels": 1,
        "unsorted_rows": 1,
        "rows_without_features": 1,
        "rows_without_labels": 1,
    }


def two_files(tmp_path: Path, features: bytes, labels: bytes) -> Dataset:
    (tmp_path / "features.txt").write_bytes(features)
    (tmp_path / "labels.txt").write_bytes(labels)
    options = BuildOptions(read=ReadOptions(labels_file=str(tmp_path / "labels.txt")))
    return build("xc", {"train": tmp_path / "features.txt"}, tmp_path / "out", options)


def test_x15_two_files(tmp_path: Path) -> None:
    ds = two_files(tmp_path, b"3 4\n0:1 2:2\n3:3\n1:4\n", b"3 2\n1:1\n0:1 1:1\n0:0 1:1\n")
    assert dense(ds) == ([[1, 0, 2, 0], [0, 0, 0, 3], [0, 4, 0, 0]], [[0, 1], [1, 1], [0, 1]])


def test_x17_two_files_with_empty_rows(tmp_path: Path) -> None:
    """Read matrices as pyxclib writes them: values 1.0, and an empty line for an empty row."""
    ds = two_files(tmp_path, b"4 3\n0:1.0 2:0.5\n\n1:1.0\n\n", b"4 2\n1:1.0\n0:1.0 1:1.0\n\n\n")
    assert dense(ds) == (
        [[1, 0, 0.5], [0, 0, 0], [0, 1, 0], [0, 0, 0]],
        [[0, 1], [1, 1], [0, 0], [0, 0]],
    )
    assert warnings_of(ds) == {"rows_without_features": 2, "rows_without_labels": 2}


def test_split_file_holds_out_its_rows(tmp_path: Path) -> None:
    (tmp_path / "split.txt").write_bytes(b"3\n1\n")
    split = RowSplit(tmp_path / "split.txt")
    assert split.mask(0, 4).tolist() == [True, False, True, False]
    assert split.mask(2, 4).tolist() == [True, False]


def test_c13_odd_characters_are_normalised(tmp_path: Path) -> None:
    case = next(case for case in json_lines.GOOD if case.id == "C13-json")
    ds = build_file(tmp_path, case.data, "jsonl")
    assert ds.feature_names.to_pylist() == ["café", "half", "zerowidth"]
    X = ds.train.X.to_scipy().toarray()
    assert X[0].tolist() == X[1].tolist()


def test_tsv_has_no_quotes(tmp_path: Path) -> None:
    ds = build_file(tmp_path, b'text\tlabels\n5" disk\tx\n"words, more\ty\n', "tsv")
    assert ds.train.n_rows == 2


def test_twenty_errors_then_stop(tmp_path: Path) -> None:
    path = tmp_path / "train.svm"
    path.write_bytes(b"1 1:1\n1 1:x\n" * 50)
    with pytest.raises(DataErrors) as caught:
        list(read_svmlight(path, ReadOptions(), ErrorCollector()))
    assert [error.line for error in caught.value.errors] == list(range(2, 42, 2))
    assert "19 more" in str(caught.value)
    assert len(caught.value.as_dict()["errors"]) == 20
    collector = ErrorCollector(skip_bad=True)
    list(read_svmlight(path, ReadOptions(skip_bad=True), collector))
    assert (collector.n_bad, len(collector.errors), collector.n_rows) == (50, 20, 50)


def test_skip_bad_continues_and_reports(tmp_path: Path) -> None:
    ds = build_file(tmp_path, b"0 1:1\n0 1:x\n\n1 1:2\n-1 1:1\n", skip_bad=True)
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
        build_file(tmp_path, b"0 1:x\n0 1:y\n", skip_bad=True)
    assert len(caught.value.errors) == 2
    assert not (tmp_path / "out").exists()


def test_skip_bad_counts_towards_the_header(tmp_path: Path) -> None:
    ds = build_file(tmp_path, b"3 2 2\n0 0:1\n0 0:x\n1 1:1\n", "xc", skip_bad=True)
    assert ds.train.n_rows == 2
    (tmp_path / "more").mkdir()
    with pytest.raises(DataErrors) as caught:
        build_file(tmp_path / "more", b"2 2 2\n0 0:1\n0 0:x\n1 1:1\n", "xc")
    found = [(error.code, error.line) for error in caught.value.errors]
    assert found == [("SVM_BAD_VALUE", 3), ("XC_ROW_COUNT", 4)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_errors": 0},
        {"n_features": -1},
        {"delimiter": ";;"},
        {"skip_bad": "yes"},
        {"text_fields": 3},
        {"no": 1},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        BuildOptions.from_dict(options)


ROOT = Path(__file__).parents[2]


def test_memory_depends_on_the_bytes_read_not_on_declared_sizes(tmp_path: Path) -> None:
    """Read files with limited memory: large claims, a line of 2 GB, decompression bombs."""
    path = str(ROOT)
    command = [sys.executable, "-m", "tests.robustness.badinput.memory", str(tmp_path)]
    # MALLOC_ARENA_MAX: threads of a library then do not reserve 64 MiB each.
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "MALLOC_ARENA_MAX": "2",
    }
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    reports = [json.loads(line) for line in process.stdout.splitlines()]
    assert process.returncode == 0, process.stdout + process.stderr
    assert [each["id"] for each in reports] == list(CASES)
    assert all(each["grown_mb"] < 100 for each in reports), reports


def codes_of(folder: str) -> set[str]:
    """Return the error codes in the source of a package."""
    out = set()
    for path in (ROOT / "xcray" / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
                "error",
                "_error",
                "DataError",
                "report",
                "row_errors",
            ):
                strings = [
                    arg.value
                    for arg in node.args
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                ]
                out |= {
                    value
                    for value in strings[:1]
                    if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", value)
                }
    return out


def test_every_code_of_reading_is_explained() -> None:
    of_calls = {"NOT_A_LIST", "TEXT_NOT_STRING"}  # raised for arguments of Python calls only
    result = codes_of("data") | codes_of("batch")
    assert result - of_calls <= set(CODES), (
        "a code is raised that xcray/data/readers/error_codes.py does not explain"
    )
    assert len(result) > 50
    named = {
        case.code
        for module in (svmlight, xc, tables, json_lines, parquet, numpy_arrays)
        for case in module.BAD
    }
    # Codes of batch predictions and of label name files have their own tests.
    apart = {
        "CHANGED",
        "LABEL_DUPLICATE",
    }
    assert set(CODES) - named == apart, (
        "every code has a row in the tables, and every row a code that is explained"
    )
