"""Labels without training rows, found by their names: recall of a ranker and of names alone.

python -m benchmarks.text.zero_shot --data MODEL_AND_DATA [--share 0.05]

MODEL_AND_DATA has `model`, of a training with `--rank`, and its `data`, with held-out rows. A share
of the labels, drawn at random, is taken out of the weights and of the training rows that the ranker
counts; its trees stay. Recall is of pairs of a held-out row and such a label, by the rows that the
label had. Names alone: labels with a match, the longest first, then the most frequent.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import run_benchmark
from xcray.arrays import frozen
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.label_texts import LabelText, LabelTexts, open_label_texts, set_label_texts
from xcray.data.texts import read_texts
from xcray.index.scorer import SparseScorer
from xcray.index.search import SearchIndex
from xcray.kernels.search.ranked_candidates import FIRST_WORD, MATCHES, WORDS
from xcray.kernels.sparse import take_rows
from xcray.model.directory import LinearPart
from xcray.model.model import Model
from xcray.model.ranker import Ranker, index_labels
from xcray.predict.ranking import CandidateFinder, TextRanker, text_range
from xcray.storage.names import Names
from xcray.training import TrainSpec, train

KS: Final = (20, 5)
ROWS: Final = 500  # that are answered at once
RARE: Final = 20  # training rows of a label


def without(
    model: Model, data: Dataset, labels_left: Any
) -> tuple[TextRanker, CandidateFinder, Names]:
    """Return ranker and candidates of a model with weights of some labels only, and all ids."""
    assert model.ranker is not None and model.text is not None  # noqa: PT018
    texts = open_label_texts(data)
    assert texts is not None
    linear, ids = model.require_linear(), model.label_names.to_pylist()
    search = SearchIndex.build(
        take_rows(linear.W, frozen(labels_left, np.int64)),
        frozen(linear.b[labels_left], np.float32),
        row_norm=linear.search.row_norm,
    )
    own = LinearPart(search.W, search.b, search)
    names = Names(pa.array([ids[label] for label in labels_left], pa.large_string()))
    counts = frozen(model.ranker.labels.counts[labels_left], np.int64)
    labels = index_labels(names, counts, texts, model.text, ["de", "en"])
    ranker = Ranker(labels, model.ranker.trees, model.ranker.baseline)
    return (
        TextRanker(ranker, own, SparseScorer(search)),
        CandidateFinder(own, labels),
        labels.label_names,
    )


def found(model: Model, data: Dataset, share: float) -> list[tuple[int, list[bool]]]:
    """Return the training rows of the label of each pair, and what found it.

    That is: a match anywhere, then ranker and names alone for each of KS.
    """
    assert data.test is not None and model.text is not None  # noqa: PT018
    K, ids = model.n_labels, data.label_names.to_pylist()
    gone = np.random.default_rng(0).choice(K, int(share * K), replace=False).tolist()
    ranker, finder, names = without(model, data, np.setdiff1d(np.arange(K), gone))
    number = {name: i for i, name in enumerate(names.to_pylist())}
    places = {label: number[ids[label]] for label in gone if ids[label] in number}
    pairs = []
    read = model.text.read(chain.from_iterable(read_texts(data, "test")))
    for start in range(0, data.test.n_rows, ROWS):
        texts = text_range(read, start, start + ROWS)
        top = ranker.search(texts, KS[0])
        candidates = finder.candidates(texts, top)
        for i in range(texts.X.n_rows):
            wanted = [label for label in data.test.Y.row(start + i).tolist() if label in places]
            if not wanted:
                continue
            part = slice(*candidates.indptr[i : i + 2])
            labels, features = candidates.labels[part], candidates.features[part]
            order = np.lexsort(
                (features[:, FIRST_WORD], -features[:, MATCHES], -features[:, WORDS])
            )
            named = labels[order][features[order, MATCHES] > 0]
            for label in wanted:
                place = places[label]
                both = ((top.labels[i, :k], named[:k]) for k in KS)
                hits = [place in each.tolist() for each in (named, *chain.from_iterable(both))]
                pairs.append((int(data.label_counts[label]), hits))
    return pairs


def generated(folder: Path) -> Path:
    """Train on rows that mostly name their label; return the folder of the data and the model."""
    rng, lines = np.random.default_rng(0), []
    for i in range(800):
        word = f"subject{i % 40}" if rng.random() < 0.75 else f"hint{i % 40}"
        words = [word, *(f"word{each}" for each in rng.integers(0, 30, 6))]
        lines.append(json.dumps({"text": " ".join(words), "labels": [f"id{i % 40}"]}))
    (folder / "rows.jsonl").write_text("\n".join(lines))
    reading = BuildOptions.from_dict({"test_fraction": 0.2})
    data = build("jsonl", {"train": folder / "rows.jsonl"}, folder / "data", reading)
    set_label_texts(data, LabelTexts.of(LabelText(f"id{i}", f"subject{i}") for i in range(40)))
    spec = TrainSpec(str(data.path), pool="serial", rank=True)
    train(spec, run_dir=folder / "run", out=folder / "model")
    return folder


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure a model, or one of generated rows."""
    place = options.data or generated(folder)
    data = Dataset.open(place / "data")
    pairs = found(Model.open(place / "model", verify=False), data, options.share)
    names = ["name in the row", *(f"{who}@{k}" for k in KS for who in ("ranker", "names"))]
    rows = {}
    for title, low, high in (("rare", 0, RARE), ("frequent", RARE + 1, 10**9), ("all", 0, 10**9)):
        hits = np.array([each for count, each in pairs if low <= count <= high], float)
        if len(hits):
            recall = dict(zip(names, hits.mean(axis=0).round(3).tolist(), strict=True))
            differences = hits[:, 1::2] - hits[:, 2::2]
            errors = (differences.std(axis=0) / len(hits) ** 0.5).round(4).tolist()
            rows[title] = {"pairs": len(hits), **recall, "errors of differences": errors}
            print(title, rows[title], flush=True)
    return {"benchmark": "zero_shot", "rows": rows}


def main() -> None:
    """Measure and print the JSON."""
    run_benchmark(measure, __doc__, quick={"share": 0.2}, share={"type": float, "default": 0.05})


if __name__ == "__main__":
    main()
