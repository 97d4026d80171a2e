"""One process of benchmarks.serving.footprint, without imports outside the measured steps.

`python -m benchmarks.serving.footprint_child TASK JSON` prints one JSON object per step. Steps of
`serve` wait for a line on the standard input.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROWS, BATCH = 1000, 8


def main() -> None:
    """Run one task."""
    task, report = sys.argv[1], json.loads(sys.argv[2])
    for step in TASKS[task](report):
        print(json.dumps(step), flush=True)


def first_answer(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the seconds of each step from a new interpreter to a prediction, and the memory.

    model: a directory; core: whether to hide packages outside a core install.
    """
    if record["core"]:
        for name in record["extras"]:
            sys.modules[name] = None  # type: ignore[assignment]
    start = {"step": "python", "seconds": time.time() - record["started"], **memory()}
    yield start
    yield timed("import", lambda: load_classes())
    opened: list[Any] = []
    yield timed(
        "open", lambda: opened.append(load_classes()[0].open(record["model"], verify=False))
    )
    yield timed("predictor", lambda: opened.append(load_classes()[1](opened[0])))
    rows = queries(record["rows"])
    yield timed("first answer", lambda: opened[1].predict(rows(0, 1), 5))
    yield timed("second answer", lambda: opened[1].predict(rows(1, 2), 5))
    yield timed(f"{ROWS} answers", lambda: ask(opened[1], rows))
    yield {"step": "modules", "scipy": bool(sys.modules.get("scipy")), "modules": len(sys.modules)}


def serve(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Load kernels on a toy, then open and query every model of `models`; stay until ended.

    Each step is reported.
    """
    _use(record["toy"], record["toy_rows"])
    yield {"step": "ready"}
    input()
    selection = [_use(path, record["rows"]) for path in record["models"]]
    yield {"step": "serving", "answers": [mark for _, mark in selection]}
    input()


def reload(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Open a model, query it and close it repeatedly; yield the memory after each time."""
    for _ in range(record["times"]):
        _use(record["model"], record["rows"], 4 * BATCH)
        gc.collect()
        yield {"step": "closed", **memory(), **handles()}


def _use(path: str, rows: str, n: int = ROWS) -> tuple[Any, float]:
    """Return a predictor that has answered n rows, and a checksum of its answers."""
    Model, Predictor = load_classes()
    predictor = Predictor(Model.open(path, verify=False))
    return predictor, ask(predictor, queries(rows), n)


def load_classes() -> tuple[Any, Any]:
    """Import the modules of a prediction server."""
    import xcray

    return xcray.Model, xcray.Predictor


def ask(predictor: Any, rows: Callable[[int, int], Any], n: int = ROWS) -> float:
    """Query the first n rows in batches; return the sum of the best scores."""
    return float(
        sum(predictor.predict(rows(i, i + BATCH), 5).scores[:, 0].sum() for i in range(0, n, BATCH))
    )


def queries(rows: str) -> Callable[[int, int], Any]:
    """Return a function of rows [i, j) of the parent's file: texts as JSON, or a matrix."""
    if rows.endswith(".json"):
        texts = json.loads(Path(rows).read_text())
        return lambda i, j: texts[i:j]
    from xcray.kernels.sparse import row_range
    from xcray.storage.arrow import read_csr

    X = read_csr(Path(rows))
    return lambda i, j: row_range(X, i, j)


def timed(step: str, run: Callable[[], Any]) -> dict[str, Any]:
    """Return the duration of a step, and the memory after it."""
    began = time.perf_counter()
    run()
    return {"step": step, "seconds": time.perf_counter() - began, **memory()}


def memory(pid: str | int = "self") -> dict[str, int]:
    """Return bytes from /proc: resident, proportional share, and private to the process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    results = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return {"rss": results["Rss"], "pss": results["Pss"], "anonymous": results["Anonymous"]}


def handles() -> dict[str, int]:
    """Return the numbers of open files and mapped regions."""
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
    }


TASKS: dict[str, Callable[[dict[str, Any]], Iterator[dict[str, Any]]]] = {
    "first_answer": first_answer,
    "serve": serve,
    "reload": reload,
}

if __name__ == "__main__":
    main()
