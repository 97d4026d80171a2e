"""Fit a ranker on rows that the search was not trained on.

One part of the training rows trains a model of its own. The candidates of the other rows, scored by
that model, and whether each is correct are the rows and classes of gradient-boosted trees. So the
held-out rows of the data set are not used, and labels that only the other rows have teach the
ranker what a match of a name is worth without a score. There can be few of them, or none, so some
candidates with a match are added once more, as if their label had no training rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import Float64, Int64, Pattern, frozen
from xcray.data.dataset import Dataset
from xcray.data.label_texts import LabelTexts, open_label_texts
from xcray.data.texts import TEXTS, read_texts, texts_of
from xcray.errors import InputError, Stopped, missing_extra
from xcray.index.scorer import SparseScorer
from xcray.kernels.search.ranked_candidates import (
    FEATURES,
    FREQUENCY,
    GAP,
    MATCHES,
    RANK,
    SCORE,
)
from xcray.kernels.search.trees import LEAF, MAX_LEAVES, Trees, tree_roots
from xcray.kernels.sparse import take_pattern_rows
from xcray.model.directory import LinearPart
from xcray.model.ranker import LabelIndex, Ranker, index_labels
from xcray.predict.ranking import BATCH_ROWS, CANDIDATES, CandidateFinder, Candidates
from xcray.training.part_training import PartTraining
from xcray.training.report.partial import NO_TIME
from xcray.training.selection.held_out import HOLDOUT, hold_out, split_training_rows
from xcray.training.spec import TrainSpec

# a ranker, and how it was fitted (JSON)
FittedRanker: TypeAlias = tuple[Ranker, dict[str, Any]]

MAX_ROWS: Final = 20_000  # rows that trees are fitted to; more do not change the result
# share of the candidates with a match that are added as if their label had no training rows, and
# the least number: more of them cost accuracy for the labels that have rows
HIDDEN, MIN_HIDDEN = 0.03, 300
MAX_LANGUAGES: Final = 8  # in which names are looked for
MIN_CORRECT: Final = 100  # correct candidates without which trees only fit noise
# of HistGradientBoostingClassifier
TREES: Final = {
    "max_iter": 40,
    "learning_rate": 0.15,
    "max_leaf_nodes": MAX_LEAVES,
    "l2_regularization": 1.0,
}


def require_rankable(data: Dataset) -> LabelTexts:
    """Return the label texts. Raises InputError if a ranker cannot be fitted on this data set."""
    texts = open_label_texts(data)
    if texts is None:
        raise InputError(
            f"data set {data.name} has no label texts, which a ranker finds in texts: store them "
            "with `xcray data labels DIR FILE`",
            code="NO_LABEL_TEXTS",
        )
    if data.text is None or f"train/{TEXTS}" not in data.manifest["files"]:
        raise InputError(
            f"data set {data.name} has no texts: a ranker needs one built from texts",
            code="NO_TEXT",
        )
    return texts


def fit_ranker(
    spec: TrainSpec,
    data: Dataset,
    folder: Path,
    training: PartTraining,
    seed: int,
    seconds_left: float | None,
    group_weight: float,
) -> tuple[FittedRanker | None, dict[str, str]]:
    """Return a ranker for models of the data set; without one, notes for the report that say why.

    folder: of the training on a part of the rows, which can be the one that weighed label groups;
    seconds_left: for that training; group_weight: of the groups of the models. Raises InputError as
    `require_rankable`, and Stopped.
    """
    texts = require_rankable(data)
    assert data.text is not None
    rows = frozen(split_training_rows(data.train.n_rows)[1][:MAX_ROWS], np.int64)
    part = hold_out(data, HOLDOUT, 0, folder / "rows", with_rest=False)
    try:
        model = training.until(seconds_left).model(spec, part, folder)
    except Stopped:
        training.check_stop()
        return None, {"not_ranked": NO_TIME}
    linear = _with_weight(model.require_linear(), group_weight)
    languages = _frequent_languages(data)
    index = index_labels(data.label_names, data.label_counts, texts, data.text, languages)
    part_index = _recount(index, part.label_counts)
    batches = list(_labelled_candidates(data, linear, rows, part_index))
    features = np.concatenate([candidates.features for candidates, _ in batches])
    correct = np.concatenate([each for _, each in batches])
    n_correct = int(correct.sum())
    if n_correct < MIN_CORRECT:
        return None, {
            "not_ranked": f"a ranker needs {MIN_CORRECT} correct candidates on the {len(rows):,} "
            f"rows that it is fitted on, there are {n_correct}: train on more rows"
        }
    trees, baseline = fit_trees(*_with_hidden_labels(features, correct, seed), seed)
    details = {
        "rows": len(rows),
        "candidates": len(features),
        "correct": n_correct,
        "labels": take_pattern_rows(data.train.Y, rows).nnz,
        "features": list(FEATURES),
        "trees": len(trees.starts),
    }
    return (Ranker(index, trees, baseline), details), {}


def _frequent_languages(data: Dataset) -> list[str]:
    """Return the most frequent values of the language field, if there is one."""
    assert data.text is not None
    language = data.text.analyzer.language
    counts = Counter(language(text) for batch in read_texts(data, "train") for text in batch)
    return [each for each, _ in counts.most_common(MAX_LANGUAGES) if each]


def _recount(index: LabelIndex, counts: Int64) -> LabelIndex:
    """Return the index with the training rows that the labels have in one part."""
    others = np.zeros(len(index.counts) - len(counts), np.int64)
    return index._replace(counts=frozen(np.concatenate([counts, others]), np.int64))


def _with_weight(linear: LinearPart, weight: float) -> LinearPart:
    """Return the search with another weight of its groups; without groups, if that is 0."""
    groups = linear.search.groups
    if groups is None:
        return linear
    weighed = replace(groups, weight=weight) if weight else None
    return linear._replace(search=linear.search.with_groups(weighed))


def _labelled_candidates(
    data: Dataset, linear: LinearPart, rows: Int64, index: LabelIndex
) -> Iterator[tuple[Candidates, NDArray[np.bool_]]]:
    """Yield candidates of rows in batches, and which are correct."""
    assert data.text is not None
    finder = CandidateFinder(linear, index)
    scorer = SparseScorer(linear.search)
    for numbers, texts in _batches(data, rows):
        read = data.text.read(texts)
        candidates = finder.candidates(read, scorer.top_k(read.X, CANDIDATES))
        yield candidates, _is_correct(candidates, take_pattern_rows(data.train.Y, numbers))


def _batches(data: Dataset, rows: Int64) -> Iterator[tuple[Int64, list[str]]]:
    """Yield row numbers with their texts, in batches of at most BATCH_ROWS."""
    texts = texts_of(data, rows)
    for start in range(0, len(rows), BATCH_ROWS):
        numbers = frozen(rows[start : start + BATCH_ROWS], np.int64)
        yield numbers, [*islice(texts, len(numbers))]


def _is_correct(candidates: Candidates, Y: Pattern) -> NDArray[np.bool_]:
    """Return which candidates are labels of their row: (m,) bool."""
    width = np.int64(max(Y.n_cols, int(candidates.labels.max(initial=0)) + 1))
    row_of = np.repeat(np.arange(Y.n_rows, dtype=np.int64), np.diff(candidates.indptr))
    gold_row = np.repeat(np.arange(Y.n_rows, dtype=np.int64), np.diff(Y.indptr))
    gold = gold_row * width + Y.indices[Y.indptr[0] : Y.indptr[-1]]
    return np.isin(row_of * width + candidates.labels, gold)


def _with_hidden_labels(
    features: Float64, correct: NDArray[np.bool_], seed: int
) -> tuple[Float64, NDArray[np.bool_]]:
    """Return candidates, and copies of some with a match, as if their label had no training row."""
    known = np.flatnonzero((features[:, MATCHES] > 0) & (features[:, FREQUENCY] > 0))
    n = max(MIN_HIDDEN, int(HIDDEN * len(known)))
    drawn = np.random.default_rng(seed).permutation(known)[:n]
    hidden = features[drawn]
    hidden[:, [SCORE, RANK, GAP]] = np.nan
    hidden[:, FREQUENCY] = 0.0
    return np.concatenate([features, hidden]), np.concatenate([correct, correct[drawn]])


def fit_trees(features: Float64, correct: NDArray[np.bool_], seed: int) -> tuple[Trees, float]:
    """Return gradient-boosted trees of the classes, and the raw prediction without trees.

    features: (m, f) float64, NaN where missing; correct: (m,) bool.
    """
    try:
        # Imported here: only a fit needs scikit-learn, a ranker does not.
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error
    # scikit-learn cannot bin a column without any value, such as places of names that no text has;
    # no tree reads a constant one
    features = np.where(np.isnan(features).all(axis=0), 0.0, features)
    fitted = HistGradientBoostingClassifier(early_stopping=False, random_state=seed, **TREES)
    fitted.fit(features, correct)
    # scikit-learn has no public access to the nodes
    nodes = [stage[0].nodes for stage in fitted._predictors]
    sizes = np.array([len(tree) for tree in nodes], np.int64)
    offsets = np.repeat(tree_roots(sizes), sizes)
    every = np.concatenate(nodes)
    leaf = every["is_leaf"].astype(bool)
    return (
        Trees(
            starts=frozen(tree_roots(sizes), np.int32),
            feature=frozen(np.where(leaf, LEAF, every["feature_idx"]), np.int32),
            threshold=frozen(np.where(leaf, 0.0, every["num_threshold"]), np.float64),
            left=frozen(every["left"] + offsets, np.int32),
            right=frozen(every["right"] + offsets, np.int32),
            missing_left=frozen(every["missing_go_to_left"], np.uint8),
            value=frozen(every["value"], np.float64),
        ),
        float(fitted._baseline_prediction[0, 0]),
    )
