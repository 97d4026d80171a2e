"""Compare calibration methods by ECE and Brier score on held-out rows not used for fitting.

`python -m studies.calibration [--data DIR] [--sets cooking gutenberg_lcsh gnd_tibkat]
[--models DIR] [--seeds 5]`

Each seed splits the held-out rows into halves, one to fit and one to measure. Figures are medians
over seeds, with the range of ECE. Methods: nothing fitted (sigmoid of the score), Platt's sigmoid
of a + b score, one isotonic curve, curves by label frequency, curves by frequency and place (the
choice of `xcray calibrate`). "filtered": only a tenth of the labels are allowed, and answers are
read from the curves of any place and, for comparison, of their places. --models: a folder with a
trained model NAME/model and its data NAME/dataset, which saves the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.common import arguments, dataset, in_folder
from xcray.data.dataset import Dataset
from xcray.metrics import brier, ece, ece_floor, matches
from xcray.model.model import Model
from xcray.plots.trainings import calibration_picture
from xcray.predict import Predictor
from xcray.training import TrainSpec, train
from xcray.training.calibration.fit import CANDIDATES, measure_calibration, split_rows
from xcray.training.calibration.isotonic import (
    RankedLabels,
    fit_curves,
    fit_curves_of,
    frequency_bins,
)

KS = (1, 3, 5)
Estimator = Callable[[RankedLabels], Any]


def estimators(answers: RankedLabels, counts: Any, seed: int) -> dict[str, Estimator]:
    """Return functions that estimate probabilities, one per method, fitted on `answers`."""
    near = answers.at_places(1, 10)
    platt = LogisticRegression(C=1e6).fit(near.scores.reshape(-1, 1), near.correct.reshape(-1))
    chosen = fit_curves(answers, counts, seed)
    one = fit_curves_of(answers, np.zeros(len(counts), np.int32), ())
    pooled = fit_curves_of(answers, frequency_bins(answers, counts, max(chosen.n_bins, 3)), ())
    return {
        "sigmoid": lambda some: 0.5 * (1 + np.tanh(0.5 * some.scores)),
        "platt": lambda some: platt.predict_proba(some.scores.reshape(-1, 1))[:, 1].reshape(
            some.scores.shape
        ),
        "isotonic": lambda some: one.estimate(some.labels, some.scores),
        "by frequency": lambda some: pooled.estimate(some.labels, some.scores),
        "xcray": lambda some: chosen.estimate(some.labels, some.scores),
        "xcray, any place": lambda some: chosen.estimate(some.labels, some.scores, filtered=True),
    }


def judged(estimate: Estimator, others: RankedLabels) -> dict[str, float]:
    """Return ECE, its floor and Brier score at each k."""
    out: dict[str, float] = {}
    for k in KS:
        some = others.at_places(1, k)
        p = estimate(some)
        out |= {
            f"ECE@{k}": ece(p, some.correct),
            f"floor@{k}": ece_floor(p),
            f"Brier@{k}": brier(p, some.correct),
        }
    return out


def narrowed(answers: RankedLabels, n_labels: int, seed: int) -> tuple[RankedLabels, Any]:
    """Return the top five answers when a tenth of the labels is allowed.

    The second value is which of them are within the candidates.
    """
    allowed = np.random.default_rng(seed).random(n_labels) < 0.1
    selection = allowed[answers.labels]
    order = np.argsort(~selection, axis=1, kind="stable")[:, : max(KS)]
    return RankedLabels(
        *(np.take_along_axis(values, order, 1) for values in answers)
    ), np.take_along_axis(selection, order, 1)


def compare(name: str, data: Dataset, model: Model, seeds: int) -> dict[str, Any]:
    """Compare all methods on one set, with one split per seed."""
    assert data.test is not None
    counts, seconds, rows = data.label_counts, [], []
    top = Predictor(model).predict(data.test.X, CANDIDATES)
    whole = RankedLabels(top.labels, top.scores, matches(top, data.test.Y))
    for seed in range(seeds):
        used, left_out, side = split_rows(data.test.X, data.train.X, seed)
        inside, others = whole.select(used[side]), whole.select(used[~side])
        began = time.process_time()
        curves = fit_curves(inside, counts, seed)
        seconds.append(time.process_time() - began)
        result = estimators(inside, counts, seed)
        row: dict[str, Any] = {way: judged(status, others) for way, status in result.items()}
        few, there = narrowed(others, data.n_labels, seed)
        for way, output in (
            ("filtered", result["xcray, any place"]),
            ("filtered, read by place", result["xcray"]),
        ):
            row[way] = {
                f"ECE@{k}": ece(output(few)[:, :k][there[:, :k]], few.correct[:, :k][there[:, :k]])
                for k in KS
            }
        rows.append(row)
        if seed == 0:
            estimate = {str(k): measure_calibration(curves, inside, others, k) for k in KS}
            shape = {
                "bins": curves.n_bins,
                "places": curves.places.tolist(),
                "knots": len(curves.scores),
            }
            shape |= {
                "fitted": len(inside.labels),
                "measured": len(others.labels),
                "left_out": left_out,
            }
    results = {
        way: {key: round(median(row[way][key] for row in rows), 5) for key in rows[0][way]}
        for way in rows[0]
    }
    spread = {
        way: [round(edge(row[way]["ECE@1"] for row in rows), 5) for edge in (min, max)]
        for way in rows[0]
    }
    return {
        "set": name,
        **shape,
        "fit_seconds": round(median(seconds), 2),
        "ways": results,
        "range of ECE@1": spread,
        "report": estimate,
    }


def trained(name: str, chosen: Any, folder: Path) -> tuple[Dataset, Model]:
    """Return a set and a model of it, from --models or trained now."""
    selection = chosen.models / name if chosen.models else None
    if selection is not None and (selection / "model" / "manifest.json").is_file():
        return Dataset.open(selection / "dataset"), Model.open(selection / "model", verify=False)
    data = dataset(name, chosen.data, folder)
    result = train(
        TrainSpec(str(data.path)), run_dir=folder / f"{name}.run", out=folder / f"{name}.model"
    )
    return data, Model.open(result.model_path, verify=False)


def main() -> None:
    """Compare on every set and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        sets={"nargs": "+", "default": ["synthetic"]},
        models={"type": Path},
        seeds={"type": int, "default": 5},
    )

    def run(folder: Path) -> dict[str, Any]:
        rows = [compare(name, *trained(name, chosen, folder), chosen.seeds) for name in chosen.sets]
        for row in rows:
            print(
                f"{row['set']}: {row['bins']} bins, places {row['places']}, fitted in {row['fit_seconds']} s"
            )
            for way, result in row["ways"].items():
                print(
                    f"  {way:24s}",
                    "  ".join(f"{key} {100 * value:6.2f}" for key, value in result.items()),
                )
        last = rows[-1]
        if chosen.picture:
            note = (
                f"{last['fitted']:,} held-out rows to fit, {last['measured']:,} others to measure"
            )
            calibration_picture(last["report"], last["set"], note).write(chosen.picture)
        return {
            "benchmark": "calibration",
            "sets": [{key: row[key] for key in row if key != "report"} for row in rows],
        }

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
