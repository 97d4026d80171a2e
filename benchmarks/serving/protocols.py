"""CPU per request of both protocols, compared with servers that do nothing.

`python -m benchmarks.serving.protocols [--model DIR --rows DATASET] [--texts FILE] [--words 100]
[--seconds 2] [--repeats 5] [--json FILE]`

The same rows are sent as JSON to /v1, and as JSON and as binary tensors to /v2, with 32 clients and
one row per request. Without --model a text model is trained on pydocs. --rows: a data set whose
test rows are sent as sparse rows. --texts: JSON lines with `text`, cut after `words` words. `bare`
and `fastapi` (benchmarks.serving.baselines) receive the bodies of the first case. The cases take
turns; a figure is the median over the turns of the processor microseconds of the server process per
request, and `search_us` that of the predictor alone, in this process, on the rows of the case.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import in_turns, run_benchmark, service, table
from benchmarks.serving.__main__ import (
    CLIENTS,
    N_REQUESTS,
    cores,
    load,
    prepared,
    processor_seconds,
    sparse,
)
from benchmarks.serving.baselines import baseline
from xcray.predict import Predictor

V1, V2 = "/v1/models/bench:predict", "/v2/models/bench/infer"
BINARY = "application/octet-stream"
WARM_SECONDS = 3.0  # least duration of the first turn, in which kernels are loaded
NUMPY_TYPES = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}


def tensors_of(row: Any) -> list[tuple[str, str, Any, bytes]]:
    """Return (name, datatype, elements, bytes) of the tensors of a text or a sparse row."""
    if isinstance(row, str):
        text = row.encode()
        return [("text", "BYTES", [row], struct.pack("<I", len(text)) + text)]
    indices, values = row
    parts = (
        ("indptr", "INT64", [0, len(indices)]),
        ("indices", "INT32", indices.tolist()),
        ("values", "FP32", [float(value) for value in values]),
    )
    return [
        (name, datatype, elements, np.array(elements, NUMPY_TYPES[datatype]).tobytes())
        for name, datatype, elements in parts
    ]


def infer_body(row: Any, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return the body of an inference request and its headers."""
    tensors = tensors_of(row)
    inputs = [
        {"name": name, "datatype": datatype, "shape": [len(elements)]}
        | ({"parameters": {"binary_data_size": len(data)}} if binary else {"data": elements})
        for name, datatype, elements, data in tensors
    ]
    options = {"top_k": 5, "binary_data_output": binary}
    head = json.dumps({"inputs": inputs, "parameters": options}).encode()
    if not binary:
        return head, {}
    headers = {"Content-Type": BINARY, "Inference-Header-Content-Length": str(len(head))}
    return head + b"".join(data for *_, data in tensors), headers


def requests_of(rows: Sequence[Any]) -> dict[str, tuple[str, list[Any]]]:
    """Return (path, [(body, headers)]) of each protocol for some rows."""
    instances = [{"text": row} if isinstance(row, str) else sparse(row) for row in rows]
    v1 = [json.dumps({"instances": [each], "top_k": 5}).encode() for each in instances]
    return {
        "v1 json": (V1, [(body, {}) for body in v1]),
        "v2 json": (V2, [infer_body(row, False) for row in rows]),
        "v2 binary": (V2, [infer_body(row, True) for row in rows]),
    }


def search_us(predictor: Predictor, rows: Sequence[Any]) -> float:
    """Return the median processor microseconds of the predictor alone per row."""
    inputs = [
        [row] if isinstance(row, str) else _as_matrix(row, predictor.model.n_features)
        for row in rows
    ]
    times = []
    for _ in range(3):
        for each in inputs:
            began = time.thread_time_ns()
            predictor.scored_labels(predictor.predict(each, 5))
            times.append((time.thread_time_ns() - began) / 1e3)
    return median(times)


def _as_matrix(row: Any, n_features: int) -> Any:
    """Return one sparse row as a matrix."""
    from xcray.arrays import csr

    return csr([0, len(row[0])], row[0], row[1], n_features)


def cpu_us(
    server: tuple[str, psutil.Process], path: str, requests: list[Any], seconds: float
) -> float:
    """Return the processor microseconds of a server per request in one turn."""
    url, process = server
    case = {"model": "bench", "bodies": [body.decode("latin-1") for body, _ in requests]}
    headers = [each for _, each in requests]
    before = processor_seconds(process)
    report = load(
        url, case, seconds, connections=CLIENTS, path=path, headers=headers, binary=True, warm=0.0
    )
    if set(report["statuses"]) != {"200"}:
        raise SystemExit(f"{path}: {report['statuses']}")
    return 1e6 * (processor_seconds(process) - before) / report["answered"]


def rows_of(options: Any, cases: list[Any]) -> dict[str, list[Any]]:
    """Return the texts and the sparse rows to send."""
    out: dict[str, list[Any]] = {}
    if options.texts is not None:
        with open(options.texts) as lines:
            words = [json.loads(line)["text"].split() for line in lines]
        longest = [" ".join(each[: options.words]) for each in words if len(each) >= options.words]
        out["text"] = list(islice(cycle(longest), N_REQUESTS))
    for case in cases:
        name, _, count = case["name"].partition(" x ")
        if count == "1" and name not in out:
            bodies = [json.loads(body)["instances"][0] for body in case["bodies"]]
            out[name] = [
                each["text"]
                if "text" in each
                else (np.array(each["indices"], np.int32), np.array(each["values"], np.float32))
                for each in bodies
            ]
    return out


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure all cases in turn."""
    home, predictor, cases, _ = prepared(options, folder)
    rows = rows_of(options, cases)
    with (
        service(home, 1, {}, cores()[0]) as own,
        baseline("bare", folder, cores()[0]) as bare,
        baseline("fastapi", folder, cores()[0]) as fastapi,
    ):
        plan: dict[str, tuple[Any, str, list[Any]]] = {
            f"{kind}, {protocol}": (own, path, requests)
            for kind, each in rows.items()
            for protocol, (path, requests) in requests_of(each).items()
        }
        first = next(iter(plan.values()))[2]
        plan |= {"bare": (bare, V1, first), "fastapi": (fastapi, V1, first)}
        for each in plan.values():
            cpu_us(*each, max(options.seconds, WARM_SECONDS))
        methods = {
            name: lambda each=each: {"us": cpu_us(*each, options.seconds)}
            for name, each in plan.items()
        }
        out = {name: each["us"] for name, each in in_turns(methods, options.repeats).items()}
    print(
        table(
            [{"": k, "us": us, "of fastapi": us / out["fastapi"]} for k, us in out.items()],
            ("", "us", "of fastapi"),
        )
    )
    alone = {kind: round(search_us(predictor, each), 1) for kind, each in rows.items()}
    print("the predictor alone:", alone, flush=True)
    model = predictor.model
    return {"labels": model.n_labels, "weights": model.nnz, "cpu_us": out, "search_us": alone}


def main() -> None:
    """Run all measurements and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"seconds": 0.3, "repeats": 1},
        model={"type": Path, "help": "a model directory, instead of training on pydocs"},
        rows={"type": Path, "help": "a data set directory whose test rows are sent"},
        texts={"type": Path, "help": "JSON lines with texts to send"},
        words={"type": int, "default": 100, "help": "words per text"},
        seconds={"type": float, "default": 2.0, "help": "duration of each measurement"},
        repeats={"type": int, "default": 5},
    )


if __name__ == "__main__":
    main()
