"""The functions under test, and their invariants.

Only xcray's own exceptions escape, and nothing is accepted that a reference reader reads
differently.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.robustness.badinput import fasttext, json_lines, parquet, predict, svmlight, tables, xc
from tests.robustness.fuzz import models, naive
from xcray.data.matrices import READERS
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.label_names import LabelNames
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import label_names, parquet_layout, parquet_records, read_parquet
from xcray.data.readers.records import read_records
from xcray.data.splits import RowSplit
from xcray.data.weights import check_weights, read_weights
from xcray.errors import InputError, XcrayError
from xcray.service.http.body import parse_body
from xcray.service.inference_v2 import decode
from xcray.service.prediction import fast_decode as quick
from xcray.service.prediction.instances import to_csr, to_rows
from xcray.service.schemas.predict import PredictRequest
from xcray.service.settings import Settings

OPTIONS = ReadOptions(max_line_bytes=1 << 20, max_field_bytes=1 << 20)


class Target(NamedTuple):
    """A function under test.

    seeds: initial inputs. words: tokens of its grammar. run: takes an input and a folder and
    returns the outcome as a word.

    `run` raises Differs if xcray accepts input that it should refuse, and any exception that
    escapes from xcray.
    """

    name: str
    seeds: Sequence[bytes]
    words: Sequence[bytes]
    run: Callable[[bytes, Path], str]


class Differs(AssertionError):
    """xcray and the reference reader interpret an input differently."""


def compared(
    read: Callable[[], Any], plain: Callable[[], Any], same: Callable[[Any, Any], bool]
) -> str:
    """Return the code of the refusal, or "accepted" if the reference reader gives the same."""
    try:
        result = read()
    except XcrayError as error:
        _check_error(error)
        return str(error.code)
    try:
        expected = plain()
    except naive.Refused as error:
        raise Differs(f"accepted, though {error}: {str(result)[:300]}") from None
    if not same(result, expected):
        raise Differs(f"read as {str(result)[:300]}, it is {str(expected)[:300]}")
    return "accepted"


def _check_error(error: XcrayError) -> None:
    """Check that an error is valid JSON, printable and short."""
    text = json.dumps(error.as_dict(), allow_nan=False)
    text.encode("utf-8")
    if len(error.message) > 2500 or not error.message.isprintable():
        raise Differs(f"the message is long, or does not print: {error.message[:200]!r}")


def matrix(format: str, suffix: str, plain: Callable[[bytes], Any]) -> Callable[[bytes, Path], str]:
    """Return a runner that compares feature rows with a reference reader."""

    def run(data: bytes, folder: Path) -> str:
        path = folder / f"in.{suffix}"
        path.write_bytes(data)

        def read() -> list[Any]:
            rows: list[Any] = []
            for X, Y in READERS[format](path, OPTIONS, ErrorCollector()):
                assert X.n_rows == Y.n_rows
                for i in range(X.n_rows):
                    indices, values = X.row(i)
                    labels = Y.indices[Y.indptr[i] : Y.indptr[i + 1]]
                    rows.append(
                        (labels.tolist(), dict(zip(indices.tolist(), values.tolist(), strict=True)))
                    )
            return rows

        return compared(read, lambda: plain(data), lambda a, b: a == b)

    return run


def documents(format: str, plain: Callable[[bytes], Any]) -> Callable[[bytes, Path], str]:
    """Return a runner that compares documents with a reference reader."""

    def run(data: bytes, folder: Path) -> str:
        path = folder / f"in.{format}"
        path.write_bytes(data)

        def read() -> list[Any]:
            return [
                (record.text, record.labels)
                for record in read_records(format, path, OPTIONS, ErrorCollector())
            ]

        return compared(read, lambda: plain(data), lambda a, b: a == b)

    return run


def run_parquet(data: bytes, folder: Path) -> str:
    """Compare the Parquet reader with Arrow, which reads the whole file at once without checks."""
    path = folder / "in.parquet"
    path.write_bytes(data)

    def read() -> list[Any]:
        form = parquet_layout(path, OPTIONS)
        if form.text:
            return [
                (record.text, list(record.labels))
                for record in parquet_records(path, OPTIONS, ErrorCollector())
            ]
        numbers = (
            {name: k for k, name in enumerate(label_names(path, OPTIONS))}
            if form.named_labels
            else None
        )
        rows = []
        for X, Y in read_parquet(path, OPTIONS, ErrorCollector(), numbers):
            for i in range(X.n_rows):
                indices, values = X.row(i)
                rows.append(
                    (
                        dict(zip(indices.tolist(), values.tolist(), strict=True)),
                        int(Y.indptr[i + 1] - Y.indptr[i]),
                    )
                )
        return rows

    def plain() -> list[Any]:
        try:
            return (
                pq.ParquetFile(io.BytesIO(data))
                .read(columns=parquet_layout(path, OPTIONS).columns)
                .to_pylist()
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            raise naive.Refused(str(error)[:100]) from None

    return compared(read, plain, _same_rows)


def _same_rows(results: list[Any], rows: list[dict[str, Any]]) -> bool:
    """Return whether the rows of the reader are those of Arrow."""
    if len(results) != len(rows):
        return False
    for one, row in zip(results, rows, strict=True):
        if isinstance(one[0], str):
            if one[0] != row["text"]:
                return False
            continue
        indices = row.get("indices", range(len(row["values"])))
        entries = {j: float(np.float32(v)) for j, v in zip(indices, row["values"], strict=True)}
        if "indices" not in row:
            entries = {j: v for j, v in entries.items() if v}
        if one[0] != entries:
            return False
    return True


MODEL = SimpleNamespace(n_features=8, text=None)
SETTINGS = Settings(max_instances=64)


def run_predict(data: bytes, folder: Path) -> str:
    """Compare the fast decoder with the strict one.

    The fast decoder must accept nothing that the strict one refuses and give the same result. The
    rows must be those of the JSON.
    """
    fast = quick.decode_fast(data, 64)
    try:
        request = quick.to_query(parse_body(PredictRequest, data))
    except InputError as error:
        _check_error(error)
        if fast is not None:
            raise Differs(f"the quick reader took what is {error.code}") from None
        return str(error.code)
    if fast is not None and not _same_query(fast, request):
        raise Differs("the quick reader understood it differently")
    try:
        rows = to_rows(MODEL, request.instances)
        again = to_csr(MODEL, request.instances)
    except InputError as error:
        _check_error(error)
        return str(error.code)
    if isinstance(rows, list):
        raise Differs("texts for a model that takes none")
    for i, instance in enumerate(json.loads(data, parse_int=_bounded_int)["instances"]):
        values = np.float32(instance["values"])
        pairs = zip(instance.get("indices", range(len(values))), values.tolist(), strict=True)
        entries = {j: v for j, v in pairs if v or "indices" in instance}
        for X in (rows, again):
            indices, actual = X.row(i)
            if dict(zip(indices.tolist(), actual.tolist(), strict=True)) != entries:
                raise Differs(f"instance {i} became {indices.tolist()} {actual.tolist()}")
    return "accepted"


def _bounded_int(digits: str) -> int:
    """Return an integer; 300 digits are enough to compare a very long one."""
    return int(digits[:300])


def _same_query(one: quick.PredictQuery, other: quick.PredictQuery) -> bool:
    """Return whether two decoders gave the same query."""

    def query_content(ask: quick.PredictQuery) -> Any:
        return [[each.text, each.indices, each.values] for each in ask.instances], tuple(ask[1:])

    return bool(query_content(one) == query_content(other))


def run_oip(data: bytes, folder: Path) -> str:
    """Decode an infer request: two bytes for the length of its JSON (65,535: all), the body."""
    report = int.from_bytes(data[:2], "big")
    try:
        request = decode.decode_request(
            data[2:], None if report == 65_535 else report, "vector", SETTINGS
        )
        rows = request.rows.to_rows(MODEL)
    except InputError as error:
        _check_error(error)
        return str(error.code)
    if not isinstance(rows, list):
        sound = np.isfinite(rows.data).all() and all(
            np.all(np.diff(rows.row(i)[0]) > 0) for i in range(rows.n_rows)
        )
        if not sound or (
            len(rows.indices)
            and not 0 <= rows.indices.min() <= rows.indices.max() < MODEL.n_features
        ):
            raise Differs("rows with columns or values that are none")
    return "accepted"


def run_npy(data: bytes, folder: Path) -> str:
    """Read weights in .npy: three values, or refused."""
    path = folder / "weights.npy"
    path.write_bytes(data)
    try:
        result = check_weights(read_weights(path), 3)
    except XcrayError as error:
        _check_error(error)
        return str(error.code)
    if result.shape != (3,) or not all(math.isfinite(w) and w > 0 for w in result.tolist()):
        raise Differs(f"weights {result!r}")
    return "accepted"


def run_lists(data: bytes, folder: Path) -> str:
    """Read files of label names and of row numbers."""
    path = folder / "list.txt"
    path.write_bytes(data)
    out = []
    for read in (LabelNames.read, RowSplit):
        try:
            result = read(path)
        except XcrayError as error:
            _check_error(error)
            out.append(str(error.code))
            continue
        out.append("accepted")
        if isinstance(result, LabelNames) and result.names != [
            line.strip() for line in naive.lines_of(data)
        ]:
            raise Differs("names")
    return "+".join(out)


def npy(array: Any) -> bytes:
    """Return an array in .npy format."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def claiming() -> bytes:
    """Return a .npy file whose header declares 800 GB (T6)."""
    return npy(np.ones(3)).replace(b"(3,), }" + b" " * 11, b"(100000000000,), }")


def seeds_of(*modules: Any) -> list[bytes]:
    """Return the inputs of catalogue modules."""
    return [
        case.data
        for module in modules
        for case in (*module.BAD, *module.GOOD)
        if len(case.data) < 1 << 14
    ]


def infer(body: dict[str, Any], binary: bytes = b"") -> bytes:
    """Return a seed of the infer target."""
    head = json.dumps(body).encode()
    return (len(head) if binary else 65_535).to_bytes(2, "big") + head + binary


def infer_seeds() -> list[bytes]:
    """Return infer requests with tensors in JSON and in binary."""

    def tensor(name: str, kind: str, shape: list[int], data: Any) -> dict[str, Any]:
        how = (
            {"parameters": {"binary_data_size": data}} if isinstance(data, int) else {"data": data}
        )
        return {"name": name, "datatype": kind, "shape": shape, **how}

    sparse = [tensor("indptr", "INT64", [2], [0, 2]), tensor("indices", "INT32", [2], [1, 5])]
    return [
        infer({"inputs": [tensor("text", "BYTES", [2], ["a word", "b"])]}),
        infer(
            {
                "inputs": [tensor("dense", "FP32", [1, 8], [0.5] * 8)],
                "outputs": [{"name": "labels"}],
            }
        ),
        infer(
            {
                "inputs": [*sparse, tensor("values", "FP64", [2], [1.0, -2.5])],
                "parameters": {"top_k": 2},
            }
        ),
        infer(
            {"id": "x", "inputs": [tensor("dense", "FP32", [1, 8], 32)]},
            np.ones(8, np.float32).tobytes(),
        ),
        infer(
            {"inputs": [*sparse, tensor("values", "FP32", [2], 8)]},
            np.ones(2, np.float32).tobytes(),
        ),
        infer(
            {"inputs": [tensor("text", "BYTES", [2], 11)]}, b"\x03\x00\x00\x00abc\x00\x00\x00\x00"
        ),
    ]


LINE_WORDS = (
    b"\n",
    b"\r\n",
    b"\r",
    b" ",
    b"\t",
    b"#",
    b" #",
    b":",
    b",",
    b"1:1",
    b" 3:0.5",
    b"qid:3 ",
    b"\xef\xbb\xbf",
    b"\n\n",
    b"2 5 5\n",
)
CSV_WORDS = (
    b'"',
    b'""',
    b",",
    b";",
    b"\t",
    b"|",
    b"\n",
    b"\r\n",
    b"\r",
    b"text,labels\n",
    b" ",
    b"=cmd()",
    b'"a\nb"',
    b"['a', 'b']",
    b"<a><b>",
    b"|a|b|",
    b"\xc3\xa9",
    b"\xe2\x80\x8b",
)
JSON_WORDS = (*b'{" } [ ] : , " \\u \\ud800 \\ null true NaN 1e999 {} [[ "text" "labels"'.split(),)
ASK_WORDS = (*JSON_WORDS, *b'"instances" "indices" "values" "top_k" "allow" 1.0 0.5 -1'.split())
OIP_WORDS = (
    *JSON_WORDS,
    *b'"inputs" "shape" "data" "datatype" "INT64" "FP32" "BYTES" "binary_data_size" \xff\xff'.split(),
)
NPY_WORDS = (
    *b"'<f8' '|O' '<U9' '|V8' 'fortran_order' (3,) () (10**9,) True \x93NUMPY '<M8[s]' '<c16'".split(),
)
THRIFT_WORDS = (
    b"\x15\x00",
    b"\x16\x00",
    b"\x19\x1c",
    b"\x18\x00",
    b"\x1c",
    b"PAR1",
    b"PARE",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x10",
    b"\x00\x00\x00\x80",
)

TARGETS = {
    target.name: target
    for target in (
        Target(
            "svmlight", seeds_of(svmlight), LINE_WORDS, matrix("svmlight", "svm", naive.svmlight)
        ),
        Target("xc", seeds_of(xc), LINE_WORDS, matrix("xc", "txt", naive.xc)),
        Target(
            "jsonl", seeds_of(json_lines), (*JSON_WORDS, b"\n"), documents("jsonl", naive.jsonl)
        ),
        Target("csv", seeds_of(tables), CSV_WORDS, documents("csv", naive.csv)),
        Target(
            "tsv",
            [b.replace(b",", b"\t") for b in seeds_of(tables)],
            CSV_WORDS,
            documents("tsv", lambda b: naive.csv(b, "\t", False)),
        ),
        Target(
            "fasttext",
            seeds_of(fasttext),
            (b"__label__", b"__label__a", b" ", b"\n", b"\t", b"\xc2\xa0", b"{", b"#"),
            documents("fasttext", naive.fasttext),
        ),
        Target("parquet", seeds_of(parquet), THRIFT_WORDS, run_parquet),
        Target("json-predict", [case.content for case in predict.CASES], ASK_WORDS, run_predict),
        Target("oip", infer_seeds(), OIP_WORDS, run_oip),
        Target(
            "npy",
            [
                npy(np.ones(3)),
                npy(np.arange(3)),
                npy(np.array(["a"] * 3)),
                claiming(),
                b"",
                b"1\n2\n3\n",
            ],
            NPY_WORDS,
            run_npy,
        ),
        Target("lists", [b"a\nb\n", b"1\n2\n3\n", b"\n", "é\nx\n".encode()], LINE_WORDS, run_lists),
        models.target(Target),
    )
}
