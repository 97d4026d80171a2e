"""Measure decisions by one threshold per label, of xcray and of scikit-learn.

`python -m benchmarks.training.thresholds --data DIR [--sets bibtex cooking]`

A model is trained on four fifths of the training rows. On the last fifth, thresholds are fitted to
its scores. Decisions are measured on the test rows, in percent:

- one: the one threshold for all labels that has the largest micro-F1.
- sklearn: `TunedThresholdClassifierCV(cv="prefit")` of each label, for its F1, on the same scores.
- micro-F1, macro-F1: xcray's thresholds for these; precision 0.7: for this least precision.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import TunedThresholdClassifierCV

from benchmarks.harness import dataset, run_benchmark, table
from xcray.arrays import CSR, Pattern, frozen
from xcray.data.dataset import Dataset
from xcray.data.delta.rows import make_delta
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import matches
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.training import TrainSpec, train
from xcray.training.calibration.isotonic import RankedLabels
from xcray.training.calibration.label_thresholds import (
    FOLDS,
    ThresholdObjective,
    count_labels,
    fit_label_thresholds,
)
from xcray.training.selection.held_out import split_training_rows

OBJECTIVES = (
    ThresholdObjective("micro-F1"),
    ThresholdObjective("macro-F1"),
    ThresholdObjective("precision", 0.7),
)


class Score(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose only feature is its score."""

    classes_ = np.array([0, 1])

    def fit(self, X: Any, y: Any) -> Score:
        """Return itself: nothing is fitted."""
        return self

    def decision_function(self, X: Any) -> Any:
        """Return the scores."""
        return X[:, 0]

    def predict(self, X: Any) -> Any:
        """Return whether scores are positive."""
        return (X[:, 0] > 0).astype(int)


def sklearn_thresholds(answers: RankedLabels, Y: Pattern) -> Any:
    """Return the threshold of each label by scikit-learn, from the scores of all labels.

    Labels without a true row, or with one score for all rows, are never predicted.
    """
    scores = np.empty((Y.n_rows, Y.n_cols))
    np.put_along_axis(scores, answers.labels, answers.scores, axis=1)
    true, thresholds = Y.to_scipy().toarray() > 0, np.full(Y.n_cols, np.inf)
    for k in np.flatnonzero(true.any(axis=0) & (np.ptp(scores, axis=0) > 0)):
        tuned = TunedThresholdClassifierCV(
            Score(), scoring="f1", cv="prefit", refit=False, response_method="decision_function"
        )
        thresholds[k] = tuned.fit(scores[:, [k]], true[:, k]).best_threshold_
    return thresholds


def one_threshold(answers: RankedLabels, Y: Pattern) -> Any:
    """Return the threshold with the largest micro-F1 for all labels together."""
    order = np.argsort(-answers.scores, axis=None, kind="stable")
    hits = np.cumsum(answers.correct.ravel()[order])
    best = np.argmax(hits / (np.arange(1, len(hits) + 1) + Y.nnz))
    return np.full(Y.n_cols, answers.scores.ravel()[order][best])


def answers_of(predictor: Predictor, X: CSR, Y: Pattern) -> RankedLabels:
    """Return all labels of rows, best first."""
    top = predictor.predict(X, predictor.model.n_labels)
    return RankedLabels(top.labels, top.scores, matches(top, Y))


def measure_set(name: str, data: Dataset, folder: Path, *, peer: bool) -> list[dict[str, Any]]:
    """Return the figures of a data set. peer: also those of scikit-learn, which takes long."""
    learn, held = split_training_rows(data.train.n_rows)
    part = make_delta(data, folder / "part", remove=held)
    train(TrainSpec(str(part.path)), run_dir=folder / "run", out=folder / "model")
    predictor = Predictor(Model.open(folder / "model"))
    Y = take_pattern_rows(data.train.Y, held)
    answers = answers_of(predictor, take_rows(data.train.X, held), Y)
    test = answers_of(predictor, data["test"].X, data["test"].Y)
    folds = frozen(np.random.default_rng(0).integers(0, FOLDS, len(held)), np.int64)
    methods: dict[str, Any] = {
        "one": partial(one_threshold, answers, Y),
    }
    if peer:
        methods["sklearn"] = partial(sklearn_thresholds, answers, Y)
    for objective in OBJECTIVES:
        fit = partial(fit_label_thresholds, answers, Y, folds, part.label_counts, objective)
        methods[f"{objective.name} {objective.precision or ''}"] = fit
    rows = []
    for method, fit in methods.items():
        began = time.process_time()
        fitted = fit()
        seconds = time.process_time() - began
        thresholds = getattr(fitted, "thresholds", fitted)
        found = count_labels(test, data["test"].Y, thresholds).measures(data.n_labels)
        row = {"set": name, "method": method, **{key: 100.0 * found[key] for key in found}}
        row |= {"never": int(np.isinf(thresholds).sum()), "cpu_seconds": seconds}
        rows.append({**row, "strength": getattr(fitted, "strength", None)})
    return rows


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Measure every set."""
    rows = []
    for name in options.sets if options.data else ["synthetic"]:
        (folder / name).mkdir()
        data = dataset(name, options.data, folder / "sets")
        rows += measure_set(name, data, folder / name, peer=not options.quick)
    print(table(rows, list(rows[0])), flush=True)
    return {"benchmark": "thresholds", "rows": rows}


def main() -> None:
    """Measure every set and print the JSON."""
    run_benchmark(measure, __doc__, quick={}, sets={"nargs": "+", "default": ["bibtex", "cooking"]})


if __name__ == "__main__":
    main()
