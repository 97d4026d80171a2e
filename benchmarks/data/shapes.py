"""Corpora with the shapes of LSHTC1, Amazon-670K and WikiLSHTC-325K, and models trained on them.

`python -m benchmarks.data.shapes --sets lshtc1 amazon wiki --models DIR [--scale 0.05] [--threads
2] [--json FILE]`

For each set it writes DIR/NAME/dataset, whose held-out part contains the queries, and
DIR/NAME/model. When both are complete, it writes DIR/NAME/READY, one line of JSON with sizes,
statistics next to the published ones, measures and parameters. Existing parts are kept, and a
stopped training is continued. Without --models everything is in a temporary folder, at a hundredth
of the size unless --scale is given. The rows are described in `benchmarks.data.corpus`.

Choice of parameters: lam and eps give labels about 1600, 300 and 400 weights, estimated from a few
hundred labels solved at full size. eps is 0.1 where that is sufficient, which takes half the time
of 0.01 with the same P@1 within one point (at a scale of 0.03). The shares of words give a P@1
between 0.3 and 0.7. wiki has a quarter of the rows of its original, because the cost of a label
grows with all rows, while a search only depends on the weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.data.corpus import Shape, generate
from benchmarks.harness import run_benchmark
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.storage.atomic import write_bytes
from xcray.training import TrainSpec, train

SMALL = 0.01  # the scale without --models


class Task(NamedTuple):
    """A shape, its training parameters of PPDSparse, and the published statistics of the original.

    published: the statistics of the same names; weights_per_label is the target.
    """

    shape: Shape
    params: dict[str, float]
    published: dict[str, float]


def _published(nnz: float, labels: float, rows: float, weights: float) -> dict[str, float]:
    """Return published statistics by name."""
    return {
        "nnz_per_row": nnz,
        "labels_per_row": labels,
        "rows_per_label": rows,
        "weights_per_label": weights,
    }


_LSHTC1 = Shape(
    "lshtc1",
    labels=12_000,
    features=347_000,
    rows=93_805,
    words_per_row=148,
    labels_per_row=1.1,
    least=2,
    most=0.01,
    from_labels=0.06,
    from_topics=0.25,
)
_AMAZON = Shape(
    "amazon",
    labels=670_091,
    features=135_909,
    rows=490_449,
    words_per_row=86,
    labels_per_row=5.45,
    least=2,
    most=0.004,
)
_WIKI = Shape(
    "wiki",
    labels=325_056,
    features=1_617_899,
    rows=444_588,
    words_per_row=46,
    labels_per_row=3.2,
    least=2,
    most=0.01,
    from_labels=0.15,
)
TASKS = {
    "lshtc1": Task(_LSHTC1, {"lam": 0.001, "eps": 0.04}, _published(130, 1.1, 8.5, 1600)),
    "amazon": Task(_AMAZON, {"lam": 0.01, "eps": 0.1}, _published(76, 5.45, 3.99, 300)),
    "wiki": Task(_WIKI, {"lam": 0.001, "eps": 0.1}, _published(42, 3.19, 17.5, 400)),
}


def statistics(dataset: Dataset, model: Model) -> dict[str, float]:
    """Return statistics of rows, labels and queries. Each name begins with the counted item.

    postings_per_query: entries of the posting lists of a held-out row's features, mean and 99th
    percentile.
    """
    part, queries = dataset.train, dataset["test"].X
    lists = np.bincount(model.W.indices, minlength=dataset.n_features)  # lengths
    ends = np.concatenate(([0], np.cumsum(lists[queries.indices])))
    postings = np.diff(ends[queries.indptr])
    return {
        "nnz_per_row": round(part.X.nnz / part.n_rows, 2),
        "labels_per_row": round(part.Y.nnz / part.n_rows, 3),
        "rows_per_label": round(part.Y.nnz / dataset.n_labels, 3),
        "rows_per_label_median": float(np.median(dataset.label_counts)),
        "rows_per_label_most": int(dataset.label_counts.max()),
        "labels_without_rows": int((dataset.label_counts == 0).sum()),
        "nnz_per_query": round(queries.nnz / queries.n_rows, 2),
        "weights_per_label": round(model.nnz / dataset.n_labels, 2),
        "postings_per_query": round(float(postings.mean()), 1),
        "postings_per_query_p99": round(float(np.percentile(postings, 99)), 1),
    }


def prepare(name: str, folder: Path, *, scale: float = 1.0, threads: int = 2) -> dict[str, Any]:
    """Create the missing parts of a set in `folder` (data, model, READY) and return READY.

    name: in TASKS. scale: see `Shape.scaled`; no effect on existing parts. threads: workers of the
    training.
    """
    ready, task = folder / "READY", TASKS[name]
    if ready.exists():
        return dict(json.loads(ready.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    shape = task.shape if scale == 1.0 else task.shape.scaled(scale)
    path = folder / "dataset"
    dataset = Dataset.open(path) if path.exists() else generate(shape, path)
    if not (folder / "model").exists():
        spec = TrainSpec(str(path), name=name, params=task.params, workers=threads)
        train(spec, run_dir=folder / "run", out=folder / "model")
        shutil.rmtree(folder / "run")
    model = Model.open(folder / "model", verify=False)
    row = {
        "set": name,
        "scale": scale,
        "labels": dataset.n_labels,
        "features": dataset.n_features,
        "rows": dataset.train.n_rows,
        "queries": dataset["test"].n_rows,
        "weights": model.nnz,
        "params": task.params,
        "measures": {measure: round(value, 4) for measure, value in model.measures.items()},
        "seconds": model.manifest["report"]["seconds"],
        "published": task.published,
        **statistics(dataset, model),
    }
    write_bytes(ready, (json.dumps(row, sort_keys=True) + "\n").encode())
    return row


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Prepare the sets one after the other."""
    scale = options.scale or (SMALL if options.models is None else 1.0)
    rows = []
    for name in options.sets:
        place = (options.models or folder) / name
        rows.append(prepare(name, place, scale=scale, threads=options.threads))
        print({key: value for key, value in rows[-1].items() if key != "measures"}, flush=True)
    return {"benchmark": "shapes", "sets": rows}


def main() -> None:
    """Prepare the sets and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["lshtc1"], "scale": 0.02},
        sets={"nargs": "+", "choices": list(TASKS), "default": list(TASKS)},
        models={"type": Path, "help": "directory of the sets, one folder each; default: temporary"},
        scale={
            "type": float,
            "help": f"share of rows and labels; 1 by default, {SMALL} without --models",
        },
        threads={"type": int, "default": 2, "help": "workers of the trainings"},
    )


if __name__ == "__main__":
    main()
