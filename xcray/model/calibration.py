"""Calibration curves from scores to probabilities, stored in `calibration.arrow`.

A curve gives the probability that a label with a score is correct. Most labels are too rare for a
curve of their own, so labels of similar frequency in training share one. A label at the first rank
is correct more often than a label with the same score at the third, so the first ranks have curves
of their own. Curves never fall with the score. `xcray.training.edit.calibrate` fits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.errors import Corrupt, NotCalibrated, ShapeMismatch
from xcray.kernels.piecewise_linear import interpolate
from xcray.storage.arrow import list_row, read_table, write_table
from xcray.storage.atomic import sha256_arrays

CALIBRATION = "calibration.arrow"
COLUMNS = {
    "bins": pa.int32(),
    "places": pa.int64(),
    "starts": pa.int64(),
    "scores": pa.float64(),
    "probabilities": pa.float64(),
}


class Calibration(NamedTuple):
    """Curves by rank ("place") and frequency bin: piecewise linear, constant beyond their ends.

    bins: (K,) int32, frequency bin per label, 0 the rarest.
    places: (p,) int64, ascending from 1, first rank of each rank group; [1, 2] separates the
    first rank from all others. Group 0 holds any rank, for predictions whose rank is
    meaningless because not all labels were allowed.
    Curve c = group * n_bins + bin (groups 0 to p) has the knots starts[c] to starts[c + 1] of
    scores and probabilities, both float64. Scores ascend strictly; probabilities never fall and
    lie in [0, 1].
    """

    bins: Int32
    places: Int64
    starts: Int64
    scores: Float64
    probabilities: Float64

    @property
    def n_bins(self) -> int:
        """Number of frequency bins."""
        return (len(self.starts) - 1) // (len(self.places) + 1)

    def estimate(self, labels: Any, scores: Any, *, filtered: bool = False) -> Float64:
        """Return the probability that each predicted label is correct: (n, k) float64.

        labels: (n, k) label numbers, best first; scores: (n, k), their scores. filtered:
        not all labels were allowed, so ranks are meaningless. The order stays that of
        scores: a probability can be higher than the one before it. Raises ShapeMismatch.
        """
        labels, scores = frozen(labels, np.int32), frozen(scores, np.float64)
        if labels.shape != scores.shape or labels.ndim != 2:
            raise ShapeMismatch(
                f"labels {labels.shape} and scores {scores.shape} must have the same "
                "shape, rows x ranks"
            )
        group = np.zeros(labels.shape[1], np.int64)
        if not filtered:
            group = np.searchsorted(self.places, np.arange(1, labels.shape[1] + 1), side="right")
        if labels.size and not 0 <= labels.min() <= labels.max() < len(self.bins):
            raise ShapeMismatch(
                f"labels lie in 0 to {len(self.bins) - 1}, "
                f"these in {labels.min()} to {labels.max()}"
            )
        curves = (self.bins, self.n_bins, self.starts, self.scores, self.probabilities)
        return frozen(interpolate(labels, scores, frozen(group, np.int64), *curves), np.float64)

    @property
    def sha256(self) -> str:
        """Content hash of all curves."""
        return sha256_arrays(self._asdict())

    def save(self, path: Path) -> None:
        """Write a table of one row with one list per column, which can be memory-mapped."""
        columns = {name: pa.array(values, COLUMNS[name]) for name, values in self._asdict().items()}
        write_table(path, list_row(columns))

    @classmethod
    def load(cls, path: Path, n_labels: int) -> Calibration:
        """Map a file that `save` wrote, for a model of `n_labels` labels. Raises Corrupt."""
        table = read_table(path)
        if (
            table.schema != pa.schema({name: pa.large_list(kind) for name, kind in COLUMNS.items()})
            or table.num_rows != 1
        ):
            raise Corrupt(
                f"{CALIBRATION} does not hold the five lists of a calibration", file=CALIBRATION
            )
        calibration = cls(*(column.chunk(0).values.to_numpy() for column in table.columns))
        if problem := calibration.find_problem(n_labels):
            raise Corrupt(f"{CALIBRATION}: {problem}", file=CALIBRATION)
        return calibration

    def find_problem(self, n_labels: int) -> str | None:
        """Return why this cannot be the calibration of a model of `n_labels` labels, or None."""
        n_curves, knots = len(self.starts) - 1, np.diff(self.starts)
        if (
            n_curves < 1
            or n_curves % (len(self.places) + 1)
            or self.starts[0] != 0
            or (knots < 1).any()
        ):
            return "it lacks knots for a curve (one per group of ranks and bin)"
        if not len(self.scores) == len(self.probabilities) == self.starts[-1]:
            return "it does not have one score and one probability per knot"
        if len(self.places) and (self.places[0] != 1 or (np.diff(self.places) < 1).any()):
            return "groups of ranks do not ascend from 1"
        if len(self.bins) != n_labels or (
            n_labels and not 0 <= self.bins.min() <= self.bins.max() < self.n_bins
        ):
            return (
                f"it has bins for {len(self.bins)} labels, not for {n_labels}, "
                "or bins without curves"
            )
        inside = np.ones(max(len(self.scores) - 1, 0), bool)
        # differences across two curves are not checked
        inside[self.starts[1:-1] - 1] = False
        if not (np.isfinite(self.scores).all() and (np.diff(self.scores)[inside] > 0).all()):
            return "scores of a curve do not ascend"
        p = self.probabilities
        if not (((p >= 0) & (p <= 1)).all() and (np.diff(p)[inside] >= 0).all()):
            return "probabilities of a curve fall, or are outside 0 to 1"
        return None


def probability_source(manifest: Mapping[str, Any]) -> str | None:
    """Return the source of probabilities: "ranker", "curves", "softmax", "scores" or None.

    "curves" if it is calibrated, else by its link, see `Predictor.probability_source`.
    """
    if manifest.get("ranker"):
        return "ranker"
    if CALIBRATION in manifest["files"]:
        return "curves"
    return {"softmax": "softmax", "probability": "scores"}.get(manifest["link"])


def require_probabilities(manifest: Mapping[str, Any]) -> None:
    """Raise NotCalibrated, with a fix, if a model has scores but no probabilities."""
    if probability_source(manifest) is None:
        raise NotCalibrated(
            "this model has scores but no probabilities: train with calibrate=true, or run "
            "`xcray calibrate MODEL DATASET -o NEW`; held-out rows are needed"
        )
