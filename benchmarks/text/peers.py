"""Other programs on the features of the text pipeline, and scikit-learn on features of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.peers.__main__ import PEERS_BY_NAME
from benchmarks.peers.accuracy import peer_rows, prepare, table, with_measures
from benchmarks.peers.environment import environment
from benchmarks.peers.run import cached
from xcray.data.dataset import Dataset

MAX_LABELS: Final = 1000  # of a set that LinearSVC is trained on, one label after the other
K: Final = 5
LIMIT: Final = 1800.0  # seconds of a training
# features of scikit-learn by name: arguments of TfidfVectorizer whose columns stand side by side
WORDS: Final = {"ngram_range": (1, 2), "sublinear_tf": True, "min_df": 2}
CHARACTERS: Final = {**WORDS, "analyzer": "char_wb", "ngram_range": (4, 6)}
VECTORIZERS: Final = {"words, pairs": [WORDS], "words, pairs, characters": [WORDS, CHARACTERS]}


def compare_peers(
    name: str,
    features: Mapping[str, Dataset],
    ours: Sequence[dict[str, Any]],
    texts: Mapping[str, Sequence[str]],
    peers: Sequence[str],
    env: Path,
    cache: Path,
    cs: Sequence[float],
) -> list[dict[str, Any]]:
    """Return and print measures of all programs on the test rows, with paired standard errors.

    features: of one set, by option; ours: rows of xcray, the last is the reference; texts: of the
    parts "train" and "test", for scikit-learn; env: the peers' environment; cache: keeps the peers'
    runs; cs: values of C.
    """
    rows, reference = [*ours], ours[-1]["program"]
    python, absent = environment(env, {PEERS_BY_NAME[peer].package for peer in peers})
    for peer in peers:
        if PEERS_BY_NAME[peer].package in absent:
            continue
        own = []
        for option, data in features.items():
            folders = prepare(data, cache / data.content_hash[:12])

            def train(task: dict[str, Any], run: str, place: Path = folders.all.parent) -> Any:
                return cached(task, python, LIMIT, place / f"{run}.json", False)

            found = peer_rows(folders, peer, False, train, cs)
            own += [{**row, "program": f"{row['program']}, {option}"} for row in found]
        best = max(own, key=lambda row: row.get("validation", 0.0))
        best["program"] += ", chosen"
        rows += own
    data = next(iter(features.values()))
    if data.n_labels <= MAX_LABELS:
        rows += [linear_svc(data, texts, each) for each in VECTORIZERS]
    rows = [{"set": name, **row} for row in with_measures(rows, data, reference)]
    print(table(rows, reference), flush=True)
    return rows


def linear_svc(data: Dataset, texts: Mapping[str, Sequence[str]], name: str) -> dict[str, Any]:
    """Return the answers of LinearSVC, one label after the other, on features of scikit-learn."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union
    from sklearn.svm import LinearSVC

    began = time.process_time()
    maker = make_union(*(TfidfVectorizer(**each) for each in VECTORIZERS[name]))
    X, X_test = maker.fit_transform(texts["train"]), maker.transform(texts["test"])
    scores = np.full((X_test.shape[0], data.n_labels), -np.inf)
    for k in range(data.n_labels):
        y = np.zeros(X.shape[0], bool)
        y[data.train.YT.row(k)] = True
        if 0 < y.sum() < len(y):
            scores[:, k] = LinearSVC().fit(X, y).decision_function(X_test)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :K].astype(np.int32)
    seconds = time.process_time() - began
    return {"program": f"LinearSVC, {name}", "C": 1.0, "top": best, "cpu_s": seconds}
