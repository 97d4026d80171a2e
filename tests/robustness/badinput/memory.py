"""Hostile files in a process that measures its memory.

Memory must depend on the bytes read, never on the sizes that a file declares. python -m
tests.robustness.badinput.memory FOLDER prints one JSON line per file: its id, its final code,
megabytes of memory above the start, seconds. The process can use 700 MB of address space more than
at its start.
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.robustness.badinput.parquet import BAD, written
from xcray.data.build import BuildOptions
from xcray.data.matrices import READERS
from xcray.data.readers.error_log import ErrorCollector
from xcray.data.readers.options import ReadOptions
from xcray.data.readers.parquet import parquet_layout, parquet_records
from xcray.data.readers.records import FORMATS, read_records
from xcray.errors import XcrayError

ROOM = 700 << 20
ANY = {
    "max_expansion": 1 << 30,
    "max_decompressed": 1 << 40,
}  # high enough that the limits of lines and fields apply


def stream(first: bytes, again: bytes, n: int) -> bytes:
    """Return a gzip stream of `first` and n times `again`.

    It has one gzip member per repetition, so it is small even if its content is large.
    """
    return gzip.compress(first) + gzip.compress(again) * n


def repeated(n_rows: int, text: str) -> bytes:
    """Return a Parquet file that stores one text once and has it in every row."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n_rows, np.int32)), [text])
    labels = pa.ListArray.from_arrays(
        pa.array(np.arange(n_rows + 1, dtype=np.int32)), pa.array(["x"] * n_rows)
    )
    return written(pa.table({"text": texts, "labels": labels}), store_schema=False)


CASES: dict[str, tuple[str, str, Callable[[], bytes], str, dict[str, int]]] = {
    "X5": ("xc", "in.txt", lambda: b"1000000000 33554432 33554432\n1 0:1\n", "XC_ROW_COUNT", {}),
    "X6": ("xc", "in.txt", lambda: b"9" * 5000 + b" 5 5\n1 0:1\n", "XC_HEADER_LIMIT", {}),
    "S42": ("svmlight", "in.svm", lambda: b"1 2147483647:1\n", "DIM_LIMIT", {}),
    "S42-allowed": (
        "svmlight",
        "in.svm",
        lambda: b"1 2147483647:1\n",
        "",
        {"max_features": 2**31 - 1},
    ),
    "S44-2GB": (
        "svmlight",
        "in.svm.gz",
        lambda: stream(b"1 1:1\n1", b"1" * (16 << 20), 128),
        "LINE_TOO_LONG",
        ANY,
    ),
    "C9-100MB": (
        "csv",
        "in.csv.gz",
        lambda: stream(b'text,labels\n"a', b"a b\n" * (1 << 20), 25),
        "FIELD_TOO_LONG",
        {**ANY, "max_field_bytes": 4 << 20},
    ),
    "C19-800MB": (
        "csv",
        "in.csv.gz",
        lambda: stream(b"text,labels\n", (b"word " * 200_000 + b",1\n") * 8, 100),
        "DECOMPRESSED_LIMIT",
        {},
    ),
    "P3": (
        "parquet",
        "in.parquet",
        lambda: next(case.data for case in BAD if case.id == "P3"),
        "PARQUET_INVALID",
        {},
    ),
    "P11": (
        "parquet",
        "in.parquet",
        lambda: next(case.data for case in BAD if case.id == "P11"),
        "PARQUET_LIMIT",
        {},
    ),
    "P12-100GB": (
        "parquet",
        "in.parquet",
        lambda: repeated(400_000, "words " * 42_000),
        "DECOMPRESSED_LIMIT",
        {},
    ),
}


WARM = (
    ("warm.svm", "svmlight", b"1 1:1\n"),
    ("warm.svm.gz", "svmlight", gzip.compress(b"1 1:1\n")),
    ("warm.txt", "xc", b"1 2 2\n1 0:1\n"),
    ("warm.csv.gz", "csv", gzip.compress(b"text,labels\nwords,b\n")),
    ("warm.parquet", "parquet", repeated(3, "a word")),
)


def read_all(format: str, path: Path, options: ReadOptions) -> str:
    """Read a file as training data; return the code of its first error, or ""."""
    collector = ErrorCollector(options.max_errors, skip_bad=True)
    reader: Any = partial(read_records, format) if format in FORMATS else READERS[format]
    if format == "parquet" and parquet_layout(path, options).text:
        reader = parquet_records
    for _ in reader(path, options, collector):
        continue
    return collector.errors[0].code if collector.errors else ""


def main() -> int:
    """Make the files and read them; return 1 if one has an unexpected result."""
    folder, wrong = Path(sys.argv[1]), 0
    for name, (_, file, result, _, _) in CASES.items():
        (folder / name).mkdir()
        (folder / name / file).write_bytes(result())
    # Read one good file per format: its kernels are compiled before memory is limited.
    for (
        file,
        format,
        data,
    ) in WARM:
        (folder / file).write_bytes(data)
        read_all(format, folder / file, ReadOptions())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for name, (format, file, _, code, options) in CASES.items():
        base, started = reset(), time.monotonic()
        try:
            output = read_all(format, folder / name / file, BuildOptions.from_dict(options).read)
        except XcrayError as error:
            output = str(error.code)
        wrong += output != code
        fields = {"id": name, "bytes": (folder / name / file).stat().st_size, "code": output}
        print(
            json.dumps(
                {
                    **fields,
                    "grown_mb": round((peak() - base) / 2**20, 1),
                    "seconds": round(time.monotonic() - started, 2),
                }
            )
        )
    return int(bool(wrong))


def reset() -> int:
    """Reset the peak where the system allows it, and return the peak in bytes."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak()
    return peak()


def peak() -> int:
    """Return the peak of resident memory since `reset`, in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
