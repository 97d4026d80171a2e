"""`xcray compile-kernels`: compile all kernels ahead of time, for containers and first runs."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import product
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

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
# labels and features whose numbers do not fit into two bytes: these have kernels of their own
MANY: Final = (1 << 16) + 1


Step = Callable[..., None]


class Training(NamedTuple):
    """A training case: data set, solver, parameters, and whether it is calibrated.

    leaf_rows: see `CompileCase`.
    """

    data: str
    solver: str = "ppdsparse"
    params: Mapping[str, Any] = {}
    calibrate: bool = False
    leaf_rows: int = 0


def trainings() -> dict[str, Training]:
    """Return the trainings that compile all kernels: those of readers, and of each solver."""
    from xcray.solvers import loaded_solvers

    cases = {
        f"{name}-{number}": Training(case.data, name, case.params, leaf_rows=case.leaf_rows)
        for name, solver in loaded_solvers()[0].items()
        for number, case in enumerate(solver.compile_cases, 1)
    }
    return {"texts": Training("text"), "rows": Training("sparse", calibrate=True), **cases}


def compile_kernels(
    only: Annotated[
        str | None,
        typer.Option(help="One part: training (of texts, with PPDSparse) or search."),
    ] = None,
) -> None:
    """Compile the kernels of all solvers, readers and searches into numba's cache.

    The cache is NUMBA_CACHE_DIR, or next to the sources.
    """
    from xcray import kernels

    if only is not None and only not in PARTS:
        raise typer.BadParameter(f"choose one of {', '.join(PARTS)}", param_hint="--only")
    started = time.monotonic()
    run = PARTS[only] if only is not None else compile_all
    with tempfile.TemporaryDirectory(prefix="xcray-compile-") as folder:
        for done in run(Path(folder)):
            output.print_note(f"{time.monotonic() - started:6.1f} s  {done}")
    place = os.environ.get("NUMBA_CACHE_DIR") or str(Path(kernels.__file__).parent / "__pycache__")
    count = sum(1 for _ in Path(place).glob("**/*.nbi"))
    seconds = time.monotonic() - started
    output.print_json(
        {
            "kernels": count,
            "place": place,
            "seconds": seconds,
            "processor": os.environ.get("NUMBA_CPU_NAME", "this"),
        }
    )
    output.print_line(f"{count} kernels are compiled in {place}: {seconds:.0f} s")


def compile_all(folder: Path) -> Iterator[str]:
    """Read, train and predict in all variants on small data sets; yield the name of each step.

    Two processes compile at the same time: one PPDSparse and what needs its models, the other the
    search and all other solvers.
    """
    write_data(folder)
    yield "readers"
    others = [name for name, training in trainings().items() if training.solver != "ppdsparse"]
    steps: list[tuple[str, Step, tuple[Any, ...]]] = [
        *((name, run_training, (name,)) for name in trainings() if name not in others),
        ("ranked texts", rank_texts, ()),
        ("changed labels", edit_labels, ()),
        ("changed rows", change_rows, ()),
        ("files of rows", predict_files, ()),
    ]
    more: list[tuple[str, Step, tuple[Any, ...]]] = [
        *(
            (f"a model of {labels:,} labels, {link}", predict_random_model, (labels, link))
            for labels, link in product((3000, MANY), ("identity", "softmax"))
        ),
        ("a model with label groups", predict_grouped_model, ()),
        (f"a model of {MANY:,} features", write_wide_model, ()),
        *((name, run_training, (name,)) for name in others),
    ]
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        runs: dict[Future[None], str] = {}
        for part in (steps, more):
            pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            runs |= {pool.submit(step, folder, *args): name for name, step, args in part}
        for run in as_completed(runs):
            run.result()
            yield runs[run]


def run_training(folder: Path, name: str) -> None:
    """Run a training of `trainings`, and predict with its model."""
    training = trainings()[name]
    if training.leaf_rows:
        train_from_disk(folder, name, training)
    else:
        train(folder, name, training)
        predict_all(folder / name)


def predict_random_model(folder: Path, labels: int, link: str) -> None:
    """Predict with a model of random weights."""
    predict_all(write_random_model(folder / f"{link}-{labels}", labels, link))


def predict_grouped_model(folder: Path) -> None:
    """Predict with a model whose labels are in one group."""
    import numpy as np

    from xcray.arrays import csr
    from xcray.index.label_groups import LabelGroups
    from xcray.model.model import Model

    model = Model.open(write_random_model(folder / "grouped", 3000, "identity"), verify=False)
    postings = csr(np.arange(FEATURES + 1), np.zeros(FEATURES), np.ones(FEATURES), 1)
    members = np.zeros((model.n_labels, 1), np.int32)
    groups = LabelGroups((1,), postings, np.zeros(1, np.float32), members, 1.0)
    model.search.with_groups(groups).compile()


def write_wide_model(folder: Path) -> None:
    """Write a model of features whose numbers do not fit into two bytes."""
    write_random_model(folder / "wide", MANY, "identity", MANY)


def compile_training(folder: Path) -> Iterator[str]:
    """Compile what a training of texts with PPDSparse runs, without its evaluation."""
    from xcray.data.build import BuildOptions, build
    from xcray.service.models.loading import open_predictor

    lines = (dumps({"text": WORDS[i % 4], "labels": [TOPICS[i % 4]]}) for i in range(ROWS))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    options = BuildOptions.from_dict({"text": {"min_df": 1}})
    build("jsonl", {"train": folder / "rows.jsonl"}, folder / "text", options)
    train(folder, "texts", Training("text"))
    yield "training"
    predictor = open_predictor(folder / "texts")
    predictor.features(["read rows"])
    yield "texts"


def compile_search(folder: Path) -> Iterator[str]:
    """Compile the search of a model of some thousand labels."""
    from xcray.service.models.loading import open_predictor

    predictor = open_predictor(write_random_model(folder / "model", 3000, "identity"))
    predictor.search([[1.0] * FEATURES], 5)
    yield "search"


PARTS: Final[Mapping[str, Callable[[Path], Iterator[str]]]] = {
    "training": compile_training,
    "search": compile_search,
}


def write_data(folder: Path) -> None:
    """Build a data set with each reader."""
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
    sizes = {"rows": ROWS, "features": 200, "labels": 12}
    for name, kind, options in (
        ("from-xc", "xc", {}),
        ("from-svmlight", "svmlight", {}),
        ("text", "jsonl", {"text": {"min_df": 1}}),
        ("sparse", "synthetic", {"synthetic": sizes}),
        ("single", "synthetic", {"synthetic": {**sizes, "labels_per_row": 1.0}}),
        ("dense", "synthetic", {"synthetic": {**sizes, "features": 8, "nnz_per_row": 40.0}}),
    ):
        sources = {} if kind == "synthetic" else {"train": folder / f"rows.{kind}"}
        build(kind, sources, folder / name, BuildOptions.from_dict({**split, **options}))


def train(folder: Path, name: str, training: Training) -> None:
    """Run one training with one worker thread."""
    from xcray.training import TrainSpec
    from xcray.training import train as run

    data = str(folder / training.data)
    spec = TrainSpec(
        data, training.solver, training.params, workers=1, calibrate=training.calibrate
    )
    run(spec, run_dir=folder / f"{name}.run", out=folder / name)


def train_from_disk(folder: Path, name: str, training: Training) -> None:
    """Solve a label twice, with rows that do not fit into memory; the second is a warm start."""
    import numpy as np

    from xcray.arrays import frozen
    from xcray.data.dataset import Dataset
    from xcray.data.metric_forest.directory import build_forest_directory
    from xcray.solvers import make_solver

    shutil.copytree(folder / training.data, folder / name)
    dataset = Dataset.open(folder / name)
    solver: Any = make_solver(training.solver, training.params)
    build_forest_directory(dataset, training.leaf_rows)
    n_bytes = 8 * (dataset.train.X.nnz + dataset.train.n_rows)
    state, first = solver.load_dataset(dataset, n_bytes - 1), frozen([0], np.int32)
    solver.solve(state, first, start=solver.solve(state, first, keep_duals=True).duals)


def predict_all(path: Path) -> None:
    """Predict with every search method of a model."""
    from xcray.service.models.loading import open_predictor

    predictor = open_predictor(path)
    model = predictor.model
    queries = ["read rows"] if model.text is not None else [[1.0] * model.n_features]
    for k in (1, 5, 50):
        predictor.search(queries, k, probabilities=predictor.probability_source is not None)
        predictor.search(queries, k, deadline_ms=1000.0, allow=[0, 1, 2])
    predictor.scorer.rank(predictor.features(queries), 0)


def rank_texts(folder: Path) -> None:
    """Answer a text with a ranker of one leaf."""
    import numpy as np

    from xcray.arrays import frozen
    from xcray.data.label_texts import LabelText, LabelTexts
    from xcray.kernels.search.trees import LEAF, Trees
    from xcray.model.model import Model
    from xcray.model.ranker import Ranker, index_labels
    from xcray.predict.ranking import TextRanker

    model = Model.open(folder / "texts")
    assert model.text is not None
    names = LabelTexts.of(LabelText(topic, topic) for topic in TOPICS)
    counts = frozen(np.ones(model.n_labels), np.int64)
    labels = index_labels(model.label_names, counts, names, model.text)
    node = {name: frozen([0], np.int32) for name in ("starts", "left", "right")}
    leaf = {"threshold": frozen([0], np.float64), "value": frozen([0], np.float64)}
    trees = Trees(
        **node, **leaf, feature=frozen([LEAF], np.int32), missing_left=frozen([0], np.uint8)
    )
    Ranker(labels, trees, 0.0).save(folder / "ranker")
    ranker = Ranker.load(folder / "ranker", (model.n_labels, model.n_features), verify=True)
    texts = TextRanker(ranker, model.require_linear(), model.scorer())
    texts.search(model.text.read(["read csv"]), 5)


def edit_labels(folder: Path) -> None:
    """Merge, remove and retrain labels."""
    from xcray.training.edit.labels import add_labels, merge_labels, remove_labels

    merge_labels(folder / "texts", folder / "text", folder / "merged", ["csv", "json"], "csv")
    remove_labels(folder / "texts", folder / "fewer", ["io"])
    add_labels(folder / "fewer", folder / "text", folder / "again")


def change_rows(folder: Path) -> None:
    """Update a model to changed rows, which also change the weights of positives."""
    from xcray.data.dataset import Dataset
    from xcray.data.delta.rows import make_delta
    from xcray.training import TrainSpec
    from xcray.training import train as run
    from xcray.training.edit.update import update_model

    spec = TrainSpec(
        str(folder / "text"), params={"positives": "propensity"}, workers=1, keep_duals=True
    )
    before = run(spec, run_dir=folder / "before.run", out=folder / "before").model_path
    base = Dataset.open(folder / "text")
    changed = make_delta(base, folder / "changed", add=base, remove=[0])
    update_model(before, changed.path, folder / "after")


def predict_files(folder: Path) -> None:
    """Run batch predictions on the file formats that have kernels."""
    from xcray.batch import BatchPredictSpec, predict_batch

    for name, kind in (("rows", "svmlight"), ("texts", "jsonl")):
        spec = BatchPredictSpec(
            str(folder / name), str(folder / f"rows.{kind}"), format=kind, workers=1
        )
        predict_batch(spec, run_dir=folder / f"{kind}.run", out=folder / f"answers-{kind}")


def write_random_model(path: Path, labels: int, link: str, n_features: int = FEATURES) -> Path:
    """Write a model of random weights with too many labels for plain rows."""
    import numpy as np

    from xcray.arrays import csr
    from xcray.model.write import ModelContent, TrainingRecord, write_model

    rng, each = np.random.default_rng(0), 4
    columns = np.arange(labels * each) * 7 % n_features
    W = csr(
        np.arange(labels + 1) * each,
        np.sort(columns.reshape(labels, each)).ravel(),
        rng.normal(size=labels * each),
        n_features,
    )
    write_model(
        path,
        ModelContent(
            W=W,
            b=rng.normal(size=labels),
            label_names=[str(k) for k in range(labels)],
            feature_names=[str(j) for j in range(n_features)],
            link=link,
        ),
        TrainingRecord(solver="made up", params={}, dataset_hash="0" * 64),
    )
    return path
