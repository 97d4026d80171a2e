"""Readers agree with scikit-learn on valid files, and the kernel with the strict parser on all."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

import xcray.data.readers.blocks as source_room
import xcray.data.readers.svmlight as svmlight_room
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.readers.error_log import DataErrors, ErrorCollector
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.svmlight import read_svmlight
from xcray.data.readers.xc import read_xc
from xcray.data.splits import HashSplit
from xcray.data.synthetic import SyntheticParams
from xcray.errors import DataError, NotFound, ParameterError

NUMBERS = [
    "1",
    "0",
    "-0",
    "0.1",
    "1e-5",
    "3.14159265358979",
    "0.30000000000000004",
    "123456789012345678901",
    "1e22",
    "9007199254740993",
    "1e23",
    "4.35e-23",
    "-2.2250738585072014e-308",
    "1e37",
    "99999999999999999999999999999999999999",
    ".5",
    "5.",
    "+7e+1",
    "1e-400",
    "3851301048907185e-26",  # a quotient of two doubles, one of them inexact, gives another float32
    "4436380292803781e-29",
]


def read(data: bytes, path: Path, **options: Any) -> tuple[Any, ...]:
    """Return the rows, errors and warnings of a reading."""
    path.write_bytes(data)
    tally = ErrorCollector(max_errors=1000, skip_bad=True)
    rows, fatal = [], None
    try:
        for X, Y in read_svmlight(path, ReadOptions(**options), tally):
            for i in range(X.n_rows):
                indices, values = X.row(i)
                rows.append((Y.row(i).tolist(), indices.tolist(), values.view(np.int32).tolist()))
    except DataError as error:
        fatal = error.as_dict()
    return (
        rows,
        [error.as_dict() for error in tally.errors],
        fatal,
        dict(tally.as_dict()["warnings"]),
        tally.n_features,
        tally.n_labels,
    )


def careful(
    data: bytes, path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, ...]:
    """Read a file with a kernel that refuses every line."""
    with monkeypatch.context() as patch:
        patch.setattr(
            svmlight_room,
            "parse_lines",
            lambda text, pos, row, last, slow, out, bounds: (pos, row, slow),
        )
        return read(data, path, **options)


TOKENS = st.sampled_from(
    [
        *(f"{i}:{v}" for i, v in zip(range(1, 40), NUMBERS, strict=False)),
        "3:1",
        "7:2",
        "x",
        "1:",
        ":1",
        "2:1e39",
        "#c",
        "5:nan",
        "40:1_0",
        "2:3e38",
        "2:5e38",
        "1:1e38",
    ]
)
LABELS = st.one_of(
    st.just(""),
    st.lists(st.integers(0, 12).map(str), min_size=1, max_size=5).map(",".join),
    st.sampled_from(["1,", "-1", "1.0", "nan"]),
)
UNHURT = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
]  # each example overwrites the last; some machines are slow
GAPS = st.sampled_from([" ", " ", " ", "\t", "  ", ""])
LINES = st.tuples(
    LABELS,
    st.lists(st.tuples(GAPS, TOKENS), max_size=6),
    st.sampled_from(["\n", "\n", "\r\n", " \n", "\r", ""]),
).map(lambda t: t[0] + "".join(gap + token for gap, token in t[1]) + t[2])


@given(
    parts=st.lists(LINES, min_size=1, max_size=8),
    options=st.sampled_from([{}, {"zero_based": True}, {"n_features": 6, "n_labels": 4}]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=UNHURT)
def test_the_kernel_agrees_with_the_careful_parser(
    parts: list[str], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = "".join(parts).encode()
    assert read(data, tmp_path / "f", **options) == careful(
        data, tmp_path / "f", monkeypatch, **options
    )


@given(noise=st.binary(max_size=60), at=st.integers(0, 40), cut=st.integers(0, 12))
@settings(max_examples=120, deadline=None, suppress_health_check=UNHURT)
def test_the_kernel_agrees_on_damaged_files(
    noise: bytes, at: int, cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = b"1,2 3:0.25 8:1e-3\n 1:1\n4 2:17.5 9:2\n"
    data = whole[:at] + noise + whole[at + cut :]
    assert read(data, tmp_path / "f") == careful(data, tmp_path / "f", monkeypatch)


@given(
    number=st.one_of(
        st.floats(allow_nan=False, allow_infinity=False, width=32), st.floats(-1e37, 1e37)
    ),
    form=st.sampled_from(["r", ".17g", ".9g", "e", "f", ".30e"]),
)
@settings(max_examples=200, deadline=None, suppress_health_check=UNHURT)
def test_values_are_python_floats(number: float, form: str, tmp_path: Path) -> None:
    text = repr(number) if form == "r" else format(number, form)
    path = tmp_path / "f"
    path.write_text(f"0 1:{text}\n")
    ((X, _),) = read_svmlight(path, ReadOptions(), ErrorCollector())
    with np.errstate(over="ignore", under="ignore"):
        expected = np.array([float(text)]).astype(np.float32)
    assert X.data.view(np.int32).tolist() == expected.view(np.int32).tolist()


@given(
    number=st.floats(min_value=2.0**-50, max_value=2.0**20, width=32),
    nudge=st.integers(-2, 2),
    digits=st.integers(15, 22),
)
@settings(max_examples=300, deadline=None, suppress_health_check=UNHURT)
def test_values_between_two_floats(number: float, nudge: int, digits: int, tmp_path: Path) -> None:
    """Half-way between two float32, the last bit of the float64 decides.

    An inexact product would be detected.
    """
    between = (
        float(np.float32(number)) + float(np.nextafter(np.float32(number), np.float32(np.inf)))
    ) / 2
    between += nudge * float(np.spacing(between))
    path = tmp_path / "f"
    path.write_text(f"0 1:{between:.{digits}g}\n")
    ((X, _),) = read_svmlight(path, ReadOptions(), ErrorCollector())
    assert X.data[0] == np.float32(float(f"{between:.{digits}g}"))


@pytest.mark.parametrize("text", NUMBERS)
def test_hard_values(text: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(f"0 1:{text}\n")
    ((X, _),) = read_svmlight(path, ReadOptions(), ErrorCollector())
    assert X.data.view(np.int32)[0] == np.float32(float(text)).view(np.int32)


def lines(n: int, seed: int) -> bytes:
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        labels = ",".join(map(str, sorted(rng.sample(range(30), rng.randrange(1, 5)))))
        features = " ".join(
            f"{j}:{rng.choice([1, 0.5, rng.random(), rng.gauss(0, 9)])!r}"
            for j in sorted(rng.sample(range(1, 200), 20))
        )
        out.append(f"{labels} {features}\n")
    return "".join(out).encode()


def test_the_same_as_scikit_learn(tmp_path: Path) -> None:
    path = tmp_path / "f.svm"
    path.write_bytes(lines(500, 1))
    expected, labels = load_svmlight_file(
        str(path), multilabel=True, n_features=200, dtype=np.float32, zero_based=False
    )
    ds = build(
        "svmlight", {"train": path}, tmp_path / "ds", BuildOptions(read=ReadOptions(n_features=200))
    )
    assert (ds.train.X.to_scipy() != expected).nnz == 0
    assert [ds.train.Y.row(i).tolist() for i in range(500)] == [
        sorted(map(int, row)) for row in labels
    ]


def test_what_scikit_learn_writes(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    Y = np.random.default_rng(1).integers(0, 2, (20, 4))
    dump_svmlight_file(
        X, Y, str(tmp_path / "f"), multilabel=True, zero_based=True, comment="made\nby hand"
    )
    ds = build(
        "svmlight",
        {"train": tmp_path / "f"},
        tmp_path / "ds",
        BuildOptions(read=ReadOptions(zero_based=True)),
    )
    assert ds.train.X.to_scipy().toarray().tolist() == X.tolist()
    assert ds.train.Y.to_scipy().toarray().tolist() == Y.tolist()


@pytest.mark.parametrize("block", [1, 17, 64, 1000, 1 << 22])
def test_blocks_do_not_matter(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = lines(40, 2).replace(b"\n", b" # note\n", 3) + b"\n\n" + lines(3, 3) + b"1 7:0.5"
    expected = read(data, tmp_path / "f")
    monkeypatch.setattr(source_room, "BLOCK_BYTES", block)
    monkeypatch.setattr(source_room, "HEAD_BYTES", max(block, 16))
    assert read(data, tmp_path / "f") == expected
    assert [error["line"] for error in expected[1]] == [41, 42]
    assert len(expected[0]) == 44


@pytest.mark.parametrize(
    ("suffix", "opener"), [(".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)]
)
def test_compressed_files(suffix: str, opener: Callable[..., Any], tmp_path: Path) -> None:
    plain, packed = tmp_path / "f", tmp_path / f"f{suffix}"
    plain.write_bytes(lines(50, 4))
    with opener(packed, "wb") as out:
        out.write(lines(50, 4))
    one = build("svmlight", {"train": plain}, tmp_path / "one")
    assert build("svmlight", {"train": packed}, tmp_path / "two").content_hash == one.content_hash


def test_the_test_part_shares_the_spaces_of_training(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        '{"text": "red apples", "labels": ["b"]}\n{"text": "red wine", "labels": ["a", "b"]}\n'
    )
    (tmp_path / "test.jsonl").write_text(
        '{"text": "red cheese", "labels": ["c", "b"]}\n{"text": "cheese", "labels": ["c"]}\n'
    )
    ds = build(
        "jsonl",
        {"train": tmp_path / "train.jsonl", "test": tmp_path / "test.jsonl"},
        tmp_path / "ds",
    )
    assert ds.label_names.to_pylist() == ["a", "b"]
    assert ds.feature_names.to_pylist() == ["apples", "red", "wine"]
    assert ds.test is not None
    assert [ds.test.Y.row(i).tolist() for i in range(2)] == [[1], []]
    assert ds.test.unseen is not None
    assert (ds.test.unseen.tolist(), ds.test.n_labelled) == ([1, 1], 2)
    assert [ds.test.X.row(i)[0].tolist() for i in range(2)] == [[1], []]
    assert ds.manifest["source"]["parts"]["test"]["warnings"] == {
        "labels_unseen_in_train": 2,
        "test_rows_without_features": 1,
    }


def test_label_ids_beyond_training_are_kept_out(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("0 1:1\n1 2:1\n")
    (tmp_path / "test").write_text("0,5 1:1\n7 2:1\n1 1:1\n")
    ds = build(
        "svmlight", {"train": tmp_path / "train", "test": tmp_path / "test"}, tmp_path / "ds"
    )
    assert ds.test is not None
    assert [ds.test.Y.row(i).tolist() for i in range(3)] == [[0], [], [1]]
    assert ds.manifest["source"]["parts"]["test"]["warnings"]["labels_unseen_in_train"] == 2


def test_label_names_give_the_order(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("zebra\napple\nunused\n")
    (tmp_path / "a.jsonl").write_text('{"text": "some words", "labels": ["apple"]}\n')
    (tmp_path / "a.svm").write_text("1 1:1\n")
    for format, file in (("jsonl", "a.jsonl"), ("svmlight", "a.svm")):
        options = BuildOptions(label_names_file=str(tmp_path / "names"))
        ds = build(format, {"train": tmp_path / file}, tmp_path / format, options)
        assert ds.label_names.to_pylist() == ["zebra", "apple", "unused"]
        assert ds.train.Y.row(0).tolist() == [1]
        assert ds.label_counts.tolist() == [0, 1, 0]


def test_splits_by_hash_hold_for_any_order(tmp_path: Path) -> None:
    rows = [
        json.dumps({"id": f"d{i}", "text": f"words number{i}", "labels": ["x"]}) for i in range(200)
    ]
    options = BuildOptions(test_fraction=0.3, read=ReadOptions(id_field="id"))
    sizes = []
    for name, ordered in (("a", rows), ("b", rows[::-1])):
        (tmp_path / name).write_text("\n".join(ordered) + "\n")
        ds = build("jsonl", {"train": tmp_path / name}, tmp_path / f"ds-{name}", options)
        assert ds.test is not None
        sizes.append((ds.train.n_rows, ds.test.n_rows, sorted(ds.feature_names.to_pylist())))
    assert sizes[0] == sizes[1]
    assert 40 <= sizes[0][1] <= 80
    assert sizes[0][0] + sizes[0][1] == 200


def test_splits_of_matrices(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(lines(300, 5))
    ds = build(
        "svmlight", {"train": tmp_path / "f"}, tmp_path / "ds", BuildOptions(test_fraction=0.25)
    )
    whole = build("svmlight", {"train": tmp_path / "f"}, tmp_path / "whole")
    mask = HashSplit(0.25).mask(0, 300)
    assert ds.test is not None
    assert (ds.test.X.to_scipy() != whole.train.X.to_scipy()[mask]).nnz == 0
    assert (ds.train.Y.to_scipy() != whole.train.Y.to_scipy()[~mask]).nnz == 0
    assert HashSplit(0.25, seed=1).mask(0, 300).tolist() != mask.tolist()


def test_synthetic_sets_are_reproducible(tmp_path: Path) -> None:
    ds = build("synthetic", {}, tmp_path / "ds", BuildOptions(synthetic=SyntheticParams()))
    assert ds.test is not None
    again = build("synthetic", {}, tmp_path / "again", BuildOptions(synthetic=SyntheticParams()))
    assert ds.content_hash == again.content_hash


def test_xc_sizes_come_from_the_header(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("2 10 8\n1 0:1\n,\n")
    tally = ErrorCollector(skip_bad=True)
    (chunk,) = read_xc(tmp_path / "f", ReadOptions(), tally)
    assert (chunk[0].n_cols, chunk[1].n_cols, tally.n_bad) == (10, 8, 1)


@pytest.mark.parametrize(
    ("format", "sources", "options"),
    [
        ("npx", {"train": "f"}, {}),
        ("xc", {}, {}),
        ("xc", {"train": "f", "valid": "f"}, {}),
        ("svmlight", {"train": "f", "test": "f"}, {"test_fraction": 0.1}),
        ("svmlight", {"train": "f"}, {"test_fraction": 1.5}),
        ("csv", {"train": "f"}, {"header": False}),
        ("csv", {"train": "f"}, {"nonsense": 1}),
        ("synthetic", {}, {"synthetic": {"nonsense": 1}}),
        ("jsonl", {"train": "f"}, {"text": {"nonsense": 1}}),
    ],
)
def test_what_does_not_go_together(
    format: str, sources: dict[str, str], options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("1 1:1\n")
    with pytest.raises(ParameterError):
        build(
            format,
            {part: tmp_path / name for part, name in sources.items()},
            tmp_path / "ds",
            BuildOptions.from_dict(options),
        )
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize("format", ["svmlight", "xc", "csv", "jsonl"])
def test_files_that_are_not_there(format: str, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.txt") as caught:
        build(format, {"train": tmp_path / "nowhere.txt"}, tmp_path / "ds")
    assert str(tmp_path) not in str(caught.value)


def test_errors_stay_in_file_order(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1 1:1\n1 x:1\n1 1:1\n\n1 1:y\n1 1:1\n")
    with pytest.raises(DataErrors) as caught:
        list(read_svmlight(tmp_path / "f", ReadOptions(), ErrorCollector()))
    assert [(error.code, error.line) for error in caught.value.errors] == [
        ("SVM_BAD_INDEX", 2),
        ("SVM_BLANK_LINE", 4),
        ("SVM_BAD_VALUE", 5),
    ]


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [("a\nb\na\n", "LABEL_DUPLICATE", 3), ("a\n\nb\n", "LABEL_EMPTY", 2), ("", "EMPTY_FILE", None)],
)
def test_files_of_names_are_checked(data: str, code: str, line: int | None, tmp_path: Path) -> None:
    (tmp_path / "names").write_text(data)
    (tmp_path / "f").write_text("1 1:1\n")
    with pytest.raises(DataError) as caught:
        build(
            "svmlight",
            {"train": tmp_path / "f"},
            tmp_path / "ds",
            BuildOptions(label_names_file=str(tmp_path / "names")),
        )
    assert (caught.value.code, caught.value.file, caught.value.line) == (code, "names", line)


@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 20])
def test_npy_files_are_read_in_slices(
    slice_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xcray.data.readers.numpy_arrays.SLICE_BYTES", slice_bytes)
    X = np.random.default_rng(0).integers(-1, 2, (31, 5)).astype(np.int16)
    y = np.arange(31) % 3
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(DataError, match="no labels"):
        build("npy", {"train": tmp_path / "X.npy"}, tmp_path / "out")
    options = BuildOptions(read=ReadOptions(labels_file=str(tmp_path / "y.npy")))
    part = build("npy", {"train": tmp_path / "X.npy"}, tmp_path / "out", options).train
    assert np.array_equal(part.X.to_scipy().toarray(), X)
    assert part.X.nnz == np.count_nonzero(X)
    assert np.array_equal(part.Y.indices, y)


def build_with_names(tmp_path: Path, rows: str, names: str, **options: Any) -> Dataset:
    """Build a data set of JSON lines whose labels are in a file of names."""
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "Y.txt").write_text(names)
    how = BuildOptions.from_dict({"label_names_file": str(tmp_path / "Y.txt"), **options})
    sources = dict.fromkeys(("train", "test"), tmp_path / "rows.jsonl")
    return build("jsonl", sources, tmp_path / "data", how)


@pytest.mark.parametrize(
    ("labels", "names", "options"),
    [
        ("[2, 0]", "red\ngreen\nblue\n", {}),
        ('"2|red"', "red\ngreen\nblue\n", {}),
        ("[2, 0]", "2\n0\n7\n", {"label_ids": True}),
        ("[7, 2]", "2\n0\n7\n", {}),
        ('"<red><blue>"', "<red>\n<green>\n<blue>\n", {}),
        ('["<red>", "<blue>"]', "<red>\n<green>\n<blue>\n", {}),
        ('[0, 2, 2, "red"]', "red\ngreen\nblue\n", {}),
    ],
)
def test_whole_numbers_are_positions_in_a_file_of_names(
    tmp_path: Path, labels: str, names: str, options: dict[str, Any]
) -> None:
    rows = f'{{"text": "some words", "labels": {labels}}}\n'
    data = build_with_names(tmp_path, rows, names, **options)
    assert data.label_names.to_pylist() == names.split()
    for part in (data.train, data.test):
        assert part.Y.to_scipy().toarray().tolist() == [[1, 0, 1]]


def test_a_number_that_is_no_position_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label '3' is not in Y") as caught:
        build_with_names(tmp_path, '{"text": "some words", "labels": [3]}', "a\nb\nc\n")
    assert "from 0 to 2" in str(caught.value.hint)
