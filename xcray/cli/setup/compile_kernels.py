"""`xcray compile`: every kernel is compiled now, so that no training, answer or container has to wait for it later."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import product
from json import dumps
from pathlib import Path
from typing import Any, Final, NamedTuple

from xcray.cli.terminal import output

WORDS: Final = (
    "read rows of a csv file",
    "write rows into a json file",
    "open a socket and listen",
    "rows of text in files",
)
TOPICS: Final = ("csv", "json", "socket", "io")
ROWS: Final = 400
FEATURES: Final = 100
MANY: Final = (
    1 << 16
) + 1  # labels whose numbers take three bytes in lists: these have kernels of their own


class Training(NamedTuple):
    """One way to train: the data set by its name below, the solver, its parameters, and whether probabilities are fitted."""

    data: str
    solver: str = "ppdsparse"
    params: Mapping[str, Any] = {}
    calibrate: bool = False


TRAININGS: Final = {
    "texts": Training("text"),
    "rows": Training("sparse", calibrate=True),
    "float64": Training("sparse", params={"eps": 0.0001, "prune_loss": 0.01}),
    "hinge": Training(
        "sparse", params={"loss": "hinge", "positives": "propensity", "prune_keep": 20}
    ),
    "newton": Training("dense", params={"C": 100.0}),
    "pdsparse": Training("sparse", "pdsparse"),
    "pdsparse-sampled": Training("sparse", "pdsparse", {"sample": 0.5}),
    "dsmlr": Training("single", "dsmlr", {"epochs": 30}),
    "dsmlr-two": Training(
        "single", "dsmlr", {"epochs": 4, "mode": "two", "steps": "sqrt", "order": "uniform"}
    ),
    "lbfgs": Training("single", "lbfgs", {"max_iterations": 3}),
    "lc": Training("single", "lc", {"max_rounds": 3}),
}


def compile_kernels(json: output.AsJson = False) -> None:
    """Compile the kernels of all solvers, readers and answers into numba's cache (NUMBA_CACHE_DIR, or beside the sources)."""
    from xcray import kernels

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="xcray-compile-") as folder:
        for done in work(Path(folder)):
            if not json:
                output.note(f"{time.monotonic() - started:6.1f} s  {done}")
    place = os.environ.get("NUMBA_CACHE_DIR") or str(Path(kernels.__file__).parent / "__pycache__")
    count = sum(1 for _ in Path(place).glob("**/*.nbi"))
    seconds = time.monotonic() - started
    if json:
        output.emit(
            {
                "kernels": count,
                "place": place,
                "seconds": seconds,
                "processor": os.environ.get("NUMBA_CPU_NAME", "this"),
            }
        )
    else:
        output.say(f"{count} kernels are compiled in {place}: {seconds:.0f} s")


def work(folder: Path) -> Iterator[str]:
    """Small data sets are read, trained and asked in all the ways there are; yields the name of each that is done.

    One thing at a time, by one worker: numba's cache must not be filled with two signatures of a kernel at the same moment.
    """
    write_data(folder)
    yield "readers"
    for name, training in TRAININGS.items():
        train(folder, name, training)
        ask(folder / name)
        yield name
    change(folder)
    yield "changed labels"
    answer_files(folder)
    yield "files of rows"
    for labels, link in product((3000, MANY), ("identity", "softmax")):
        ask(made_up(folder / f"{link}-{labels}", labels, link))
        yield f"a model of {labels:,} labels, {link}"


def write_data(folder: Path) -> None:
    """A data set by each reader."""
    from xcray.data.build import BuildOptions, build

    lines = [f"{i % 5},{(i + 1) % 5 + 5} {i % 9 + 1}:0.5 {i % 9 + 10}:1.25" for i in range(ROWS)]
    texts = [
        {"text": f"{WORDS[i % 4]} {i % 7}", "labels": [TOPICS[i % 4], TOPICS[i % 3]]}
        for i in range(ROWS)
    ]
    files = {
        "xc": "\n".join([f"{ROWS} 20 10", *lines, ""]),
        "svmlight": "\n".join([*lines, ""]),
        "jsonl": "".join(f"{dumps(text)}\n" for text in texts),
    }
    for kind, content in files.items():
        (folder / f"rows.{kind}").write_text(content)
    split = {"test_fraction": 0.25}
    made = {"rows": ROWS, "features": 200, "labels": 12}
    for name, kind, options in (
        ("from-xc", "xc", {}),
        ("from-svmlight", "svmlight", {}),
        ("text", "jsonl", {"text": {"min_df": 1}}),
        ("sparse", "synthetic", {"synthetic": made}),
        ("single", "synthetic", {"synthetic": {**made, "labels_per_row": 1.0}}),
        ("dense", "synthetic", {"synthetic": {**made, "features": 8, "nnz_per_row": 40.0}}),
    ):
        sources = {} if kind == "synthetic" else {"train": folder / f"rows.{kind}"}
        build(kind, sources, folder / name, BuildOptions.from_dict({**split, **options}))


def train(folder: Path, name: str, training: Training) -> None:
    """One training on threads, of one worker."""
    from xcray.training import TrainSpec
    from xcray.training import train as run

    data = str(folder / training.data)
    spec = TrainSpec(
        data, training.solver, training.params, workers=1, calibrate=training.calibrate
    )
    run(spec, run_dir=folder / f"{name}.run", out=folder / name)


def ask(path: Path) -> None:
    """Answers by every method there is for a model."""
    from xcray.service.models.loading import open_predictor

    predictor = open_predictor(path)
    model = predictor.model
    queries = ["read rows"] if model.text is not None else [[1.0] * model.n_features]
    for k in (1, 5, 50):
        predictor.answer(queries, k, probabilities=predictor.likely is not None)
        predictor.answer(queries, k, deadline_ms=1000.0, allow=[0, 1, 2])
    predictor.index.rank(predictor.features(queries), 0)


def change(folder: Path) -> None:
    """Labels removed and trained again."""
    from xcray.training.edit.operations import add_labels, merge_labels, remove_labels

    merge_labels(folder / "texts", folder / "text", folder / "merged", ["csv", "json"], "csv")
    remove_labels(folder / "texts", folder / "fewer", ["io"])
    add_labels(folder / "fewer", folder / "text", folder / "again")


def answer_files(folder: Path) -> None:
    """Rows of a file, in the formats that have kernels."""
    from xcray.batch import BulkSpec, predict_bulk

    for name, kind in (("rows", "svmlight"), ("texts", "jsonl")):
        spec = BulkSpec(str(folder / name), str(folder / f"rows.{kind}"), format=kind, workers=1)
        predict_bulk(spec, run_dir=folder / f"{kind}.run", out=folder / f"answers-{kind}")


def made_up(path: Path, labels: int, link: str) -> Path:
    """A model of random weights, too many for plain rows."""
    import numpy as np

    from xcray.arrays import csr
    from xcray.model.model import write_model

    rng, each = np.random.default_rng(0), 4
    columns = np.arange(labels * each) * 7 % FEATURES
    W = csr(
        np.arange(labels + 1) * each,
        np.sort(columns.reshape(labels, each)).ravel(),
        rng.normal(size=labels * each),
        FEATURES,
    )
    write_model(
        path,
        W=W,
        b=rng.normal(size=labels),
        label_names=[str(k) for k in range(labels)],
        feature_names=[str(j) for j in range(FEATURES)],
        solver="made up",
        params={},
        dataset_hash="0" * 64,
        link=link,
    )
    return path
