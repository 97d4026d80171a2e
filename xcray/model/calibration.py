"""From scores to probabilities: curves that a model directory keeps in `calibration.arrow`.

A curve tells how often an answer with a score is right. Most labels are too rare for a curve of their own, so labels of about equal
frequency in training share one; and a label that comes first is right more often than one with the same score that comes
third, so the first places have curves of their own. Curves never fall with the score. Fitted by `xcray.training.calibration.apply`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from xcray.arrays import Float64, Int32, Int64, frozen
from xcray.errors import Corrupt, ShapeMismatch
from xcray.kernels.piecewise_linear import told
from xcray.storage.arrow import read_table, write_table
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
    """Curves by place and frequency bin, piecewise linear, flat beyond their ends.

    bins: (K,) int32, the frequency bin of each label, 0 the rarest. places: (p,) int64, ascending from 1, where each group of
    places begins; [1, 2] has the first place and all others; group 0 is any place, for answers whose place means nothing because
    not all labels were allowed. Curve (group g of 0 to p) * n_bins + bin has the knots starts[c] to starts[c + 1] of
    scores and probabilities, both float64: scores ascend strictly, probabilities never fall and lie in 0 to 1.
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

    def of(self, labels: Any, scores: Any, *, filtered: bool = False) -> Float64:
        """The probability that each answer is right: (n, k) float64.

        labels: (n, k) label numbers, best first; scores: (n, k) theirs. filtered: not all labels were allowed, so places
        mean nothing. Order stays that of scores: a probability may be higher than the one before it.
        """
        labels, scores = frozen(labels, np.int32), frozen(scores, np.float64)
        if labels.shape != scores.shape or labels.ndim != 2:
            raise ShapeMismatch(
                f"labels {labels.shape} and scores {scores.shape} must be rows x places, both the same"
            )
        group = np.zeros(labels.shape[1], np.int64)
        if not filtered:
            group = np.searchsorted(self.places, np.arange(1, labels.shape[1] + 1), side="right")
        if labels.size and not 0 <= labels.min() <= labels.max() < len(self.bins):
            raise ShapeMismatch(
                f"labels lie in 0 to {len(self.bins) - 1}, these in {labels.min()} to {labels.max()}"
            )
        curves = (self.bins, self.n_bins, self.starts, self.scores, self.probabilities)
        return frozen(told(labels, scores, frozen(group, np.int64), *curves), np.float64)

    @property
    def sha256(self) -> str:
        """Content hash of all curves."""
        return sha256_arrays(self._asdict())

    def save(self, path: Path) -> None:
        """Write the file: a table of one row, a list a column, which a memory map reads in place."""
        columns = {
            name: pa.LargeListArray.from_arrays(
                pa.array([0, len(values)], pa.int64()), pa.array(values, COLUMNS[name])
            )
            for name, values in self._asdict().items()
        }
        write_table(path, pa.table(columns))

    @classmethod
    def load(cls, path: Path, n_labels: int) -> Calibration:
        """Map a file that `save` wrote, for a model of so many labels. Raises Corrupt when it can't be one."""
        table = read_table(path)
        if (
            table.schema != pa.schema({name: pa.large_list(kind) for name, kind in COLUMNS.items()})
            or table.num_rows != 1
        ):
            raise Corrupt(
                f"{CALIBRATION} does not hold the five lists of a calibration", file=CALIBRATION
            )
        found = cls(*(column.chunk(0).values.to_numpy() for column in table.columns))
        if problem := found.problem(n_labels):
            raise Corrupt(f"{CALIBRATION}: {problem}", file=CALIBRATION)
        return found

    def problem(self, n_labels: int) -> str | None:
        """What is wrong with it as the calibration of a model with so many labels; None when nothing is."""
        n_curves, knots = len(self.starts) - 1, np.diff(self.starts)
        if (
            n_curves < 1
            or n_curves % (len(self.places) + 1)
            or self.starts[0] != 0
            or (knots < 1).any()
        ):
            return "its curves are not one or more knots each, for every group of places and bin"
        if not len(self.scores) == len(self.probabilities) == self.starts[-1]:
            return "scores and probabilities are not as many as its curves have knots"
        if len(self.places) and (self.places[0] != 1 or (np.diff(self.places) < 1).any()):
            return "groups of places do not ascend from 1"
        if len(self.bins) != n_labels or (
            n_labels and not 0 <= self.bins.min() <= self.bins.max() < self.n_bins
        ):
            return f"it has bins for {len(self.bins)} labels, not for {n_labels}, or names bins that it has no curves of"
        inside = np.ones(max(len(self.scores) - 1, 0), bool)
        inside[self.starts[1:-1] - 1] = False  # from one curve to the next anything may happen
        if not (np.isfinite(self.scores).all() and (np.diff(self.scores)[inside] > 0).all()):
            return "scores of a curve do not ascend"
        p = self.probabilities
        if not (((p >= 0) & (p <= 1)).all() and (np.diff(p)[inside] >= 0).all()):
            return "probabilities of a curve fall, or lie outside of 0 to 1"
        return None
