"""Compare the estimates of `xcray plan --serve` with a model's real search time and memory.

`python -m benchmarks.sizing.serve --models MODEL=DATASET [...] [--seconds 4] [--http]
[--json FILE]`

Held-out rows of the data set are queried one by one. Measured are the processor time of a search
(wall time depends on other processes) and the additional memory of the process. With --http a
service is queried by a few clients as well. `knowing` is the formula with the real number of
postings per query. The last line is JSON.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, in_folder
from benchmarks.serving.__main__ import cases_of, load, processor_seconds, service
from xcray.arrays import csr_from
from xcray.data.dataset import Dataset, Split
from xcray.index.search import SearchIndex
from xcray.kernels.sparse import row_range
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.system.memory import process_memory
from xcray.training.capacity.serving import SCAN_BYTES_PER_LABEL, ServingLoad, estimate_serving

CLIENTS = 4
N_ROWS = 400  # rows
QUERY = 12e-6  # seconds per call from Python, which REQUEST includes


def copied(model: Path, target: Path) -> Path:
    """Copy a model by hard links where possible, because publishing moves a folder."""
    for path in (each for each in sorted(model.rglob("*")) if each.is_file()):
        place = target / path.relative_to(model)
        place.parent.mkdir(parents=True, exist_ok=True)
        if model.stat().st_dev == target.stat().st_dev:
            os.link(path, place)
        else:
            shutil.copyfile(path, place)
    return target


def searched(model: Path, part: Split, seconds: float) -> tuple[float, int]:
    """Return the median processor seconds of a query of one row, and the added bytes."""
    warm_up()
    before = resident()
    index = Predictor(Model.open(model, verify=False)).index
    rows = [row_range(part.X, i, i + 1) for i in range(min(N_ROWS, part.n_rows))]
    for row in rows:
        index.query(row)  # maps every page that the queries read
    took, began = [], time.thread_time()
    while time.thread_time() - began < seconds:
        for row in rows:
            start = time.thread_time()
            index.query(row)
            took.append(time.thread_time() - start)
    return float(np.median(took)), resident() - before


def warm_up() -> None:
    """Load the kernels of all searches: their memory belongs to the process, not to a model."""
    rng = np.random.default_rng(0)
    for dense in (False, True):
        W = csr_from(np.where(rng.random((300, 50)) < 0.3, 1.0, 0.0).astype(np.float32))
        SearchIndex.build(W, np.zeros(300, np.float32), dense=dense).query(row_range(W, 0, 1))


def requested(model: Path, part: Split, folder: Path, seconds: float) -> tuple[float, int]:
    """Return processor seconds of a request over HTTP, and the bytes of the service after."""
    Registry(folder / "models").publish("bench", copied(model, folder / "copy"))
    case = next(each for each in cases_of("bench", part.X, None) if each["rows"] == 1)
    with service(folder, 1, {}) as (url, process):
        load(url, case, 0.5, connections=1)
        began = processor_seconds(process)
        result = load(url, case, seconds, connections=CLIENTS)
        answered = (
            sum(result["statuses"].values()) * (seconds + 0.5) / seconds
        )  # the warm-up does not count
        return (processor_seconds(process) - began) / max(answered, 1.0), resident(process.pid)


def resident(pid: int | None = None) -> int:
    """Return the resident bytes of a process."""
    state = process_memory(pid)
    if state is None:
        raise SystemExit("this system does not report the memory of a process")
    return state.resident


def judged(model: Path, data: Path, folder: Path, seconds: float, http: bool) -> dict[str, Any]:
    """Return actual over estimated figures of one model."""
    dataset = Dataset.open(data)
    part = dataset.test if dataset.test is not None and dataset.test.n_rows else dataset.train
    opened = Model.open(model, verify=False)
    request = ServingLoad(opened.n_labels, opened.n_features, opened.nnz, part.X.nnz / part.n_rows)
    lists = np.bincount(opened.W.indices, minlength=opened.n_features)
    postings = float(lists[part.X.indices].sum() / part.n_rows)
    result, knowing = (
        estimate_serving(request),
        estimate_serving(request._replace(postings=postings)),
    )
    search, state = searched(model, part, seconds)
    ratios = {
        "search": search / (result.search + QUERY),
        "knowing": search / (knowing.search + QUERY),
    }
    ratios["memory"] = state / (result.model + result.plain + SCAN_BYTES_PER_LABEL * request.labels)
    row: dict[str, Any] = {
        **request._asdict(),
        "met": postings / max(opened.nnz, 1),
        "postings": [result.postings, postings],
    }
    row |= {"search": [result.search + QUERY, knowing.search + QUERY, search], "held": state}
    if http:
        row["request"], row["process"] = (
            [result.request, *requested(model, part, folder, seconds)],
            result.memory,
        )
        ratios["request"] = row["request"][1] / result.request
    print(
        f"{model}: {search * 1e6:.0f} us per search",
        {name: round(value, 2) for name, value in ratios.items()},
        flush=True,
    )
    return {**row, "ratios": ratios}


def main() -> None:
    """Compare every model and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        models={"nargs": "*", "default": [], "help": "MODEL=DATASET, both directories"},
        seconds={"type": float, "default": 4.0, "help": "duration of the queries per model"},
        http={"action": "store_true", "help": "also query a service"},
    )
    pairs = [word.split("=", 1) for word in chosen.models]

    def run(folder: Path) -> dict[str, Any]:
        rows = {}
        for number, (model, data) in enumerate(pairs):
            home = folder / f"home{number}"
            (home / "copy").mkdir(parents=True)
            rows[Path(model).resolve().parent.name] = judged(
                Path(model), Path(data), home, chosen.seconds, chosen.http
            )
            shutil.rmtree(home)
        return {"benchmark": "sizing_serve", "models": rows}

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
