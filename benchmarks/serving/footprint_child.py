"""One process of benchmarks.serving.footprint; nothing is imported above what is measured.

`python -m benchmarks.serving.footprint_child TASK JSON`: prints one JSON object a step; steps of
`serve` wait for a line of standard input.
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
    task, told = sys.argv[1], json.loads(sys.argv[2])
    for step in TASKS[task](told):
        print(json.dumps(step), flush=True)


def first_answer(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """From a fresh interpreter to an answer: seconds of each step, and memory after it.

    model: a directory; core: whether to hide what a core install lacks.
    """
    if told["core"]:
        for name in told["extras"]:
            sys.modules[name] = None  # type: ignore[assignment]
    start = {"step": "python", "seconds": time.time() - told["started"], **memory()}
    yield start
    yield timed("import", lambda: load_classes())
    opened: list[Any] = []
    yield timed("open", lambda: opened.append(load_classes()[0].open(told["model"], verify=False)))
    yield timed("predictor", lambda: opened.append(load_classes()[1](opened[0])))
    rows = queries(told["rows"])
    yield timed("first answer", lambda: opened[1].predict(rows(0, 1), 5))
    yield timed("second answer", lambda: opened[1].predict(rows(1, 2), 5))
    yield timed(f"{ROWS} answers", lambda: ask(opened[1], rows))
    yield {"step": "modules", "scipy": bool(sys.modules.get("scipy")), "modules": len(sys.modules)}


def serve(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A worker: kernels loaded on a toy, then every model of `models` open and asked; says when,
    and stays until told to end.
    """
    _use(told["toy"], told["toy_rows"])
    yield {"step": "ready"}
    input()
    kept = [_use(path, told["rows"]) for path in told["models"]]
    yield {"step": "serving", "answers": [mark for _, mark in kept]}
    input()


def reload(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Open a model, ask it, let it go, again and again: what the process holds after each time."""
    for _ in range(told["times"]):
        _use(told["model"], told["rows"], 4 * BATCH)
        gc.collect()
        yield {"step": "closed", **memory(), **handles()}


def _use(path: str, rows: str, n: int = ROWS) -> tuple[Any, float]:
    """A predictor that has answered n rows, and a mark of what."""
    Model, Predictor = load_classes()
    predictor = Predictor(Model.open(path, verify=False))
    return predictor, ask(predictor, queries(rows), n)


def load_classes() -> tuple[Any, Any]:
    """What a server of predictions imports."""
    import xcray

    return xcray.Model, xcray.Predictor


def ask(predictor: Any, rows: Callable[[int, int], Any], n: int = ROWS) -> float:
    """The first n rows in batches; the sum of the best scores."""
    return float(
        sum(predictor.predict(rows(i, i + BATCH), 5).scores[:, 0].sum() for i in range(0, n, BATCH))
    )


def queries(rows: str) -> Callable[[int, int], Any]:
    """Rows [i, j) of what the parent wrote: texts as JSON, or a matrix."""
    if rows.endswith(".json"):
        texts = json.loads(Path(rows).read_text())
        return lambda i, j: texts[i:j]
    from xcray.kernels.sparse import row_range
    from xcray.storage.arrow import read_csr

    X = read_csr(Path(rows))
    return lambda i, j: row_range(X, i, j)


def timed(step: str, run: Callable[[], Any]) -> dict[str, Any]:
    """How long a step took, and the memory after it."""
    began = time.perf_counter()
    run()
    return {"step": step, "seconds": time.perf_counter() - began, **memory()}


def memory(pid: str | int = "self") -> dict[str, int]:
    """Bytes by /proc: resident, the process's share of them, and those that are nobody else's."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return {"rss": found["Rss"], "pss": found["Pss"], "anonymous": found["Anonymous"]}


def handles() -> dict[str, int]:
    """Open files and mapped regions."""
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
