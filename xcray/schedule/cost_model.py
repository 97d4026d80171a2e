"""Cost of a batch in seconds, fitted while batches are solved, and speed of a worker.

Both models are pure and small: a few numbers, updated one batch at a time, with JSON state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Recency window in batches: a fit of expensive labels gives way to one of cheap labels.
MEMORY_BATCHES = 64.0
# Pull towards the proportions of the guess, relative to the evidence on a term,
RIDGE = 0.01
UNSEEN_RIDGE = 1e-3  # and, for a term with little evidence, relative to that on the other terms.
# Minimum rate relative to its guess: labels without cost would make endless batches.
MIN_RATE_SHARE = 1e-3
# Measured times are limited to this factor times the prediction, or one over it.
MAX_OUTLIER_FACTOR = 8.0
MIN_SECONDS = 1e-9  # shorter predictions are ignored
# Longer batches are scaled down to this: an expensive label is one sample, not many.
FULL_WEIGHT_SECONDS = 0.25
PRIOR_SECONDS = 0.05  # evidence that the first guess is worth
# After the first MEMORY_BATCHES, a fit per this number of batches: with a thousand workers the
# driver receives thousands of batches per second.
BATCHES_PER_FIT = 4


class CostModel:
    """Seconds = terms . rates, with rates >= 0 by recency-weighted least squares.

    guess: (T,) positive seconds per unit of each term. In units of the guess, theta = rates / guess
    and z = terms * guess, the fit (see BATCHES_PER_FIT) is

        min over theta >= MIN_RATE_SHARE s
            sum_b g^age(b) (z_b . theta - seconds_b)^2 / p_b  +  sum_t m_t (theta_t - s)^2

    where p_b is the predicted time (the variance of a batch's seconds grows with its size; batches
    above FULL_WEIGHT_SECONDS are scaled down to it), s is the factor by which the guess is off as a
    whole, and m_t = RIDGE (A_tt + UNSEEN_RIDGE mean A) with A the matrix of the first sum.
    Proportions that the batches do not determine stay those of the guess.

    Example:
        >>> model = CostModel([1.0, 1.0])
        >>> for _ in range(200):
        ...     model.update([1.0, 0.0], 2.0)
        ...     model.update([0.0, 1.0], 0.5)
        >>> [round(rate, 1) for rate in model.rates]
        [2.0, 0.5]
    """

    def __init__(self, guess: Sequence[float]) -> None:
        self._guess = [float(rate) for rate in guess]
        n = len(self._guess)
        self._theta = [1.0] * n
        self._A = [[0.0] * n for _ in range(n)]
        self._b = [0.0] * n  # sum over batches of z seconds / p
        self._expected = PRIOR_SECONDS
        self._measured = PRIOR_SECONDS  # sum over batches of the measured seconds
        self._updates = 0
        self.rates: tuple[float, ...] = tuple(self._guess)

    def price(self, terms: Sequence[float]) -> float:
        """Return the predicted seconds of a batch whose terms sum to `terms` (T,)."""
        return math.fsum(rate * term for rate, term in zip(self.rates, terms, strict=True))

    def update(self, terms: Sequence[float], seconds: float) -> None:
        """Add a batch whose terms sum to `terms` (T,) and that took `seconds`.

        Values that are not positive and finite are ignored.
        """
        predicted = self.price(terms)
        if not (0.0 < seconds < math.inf and MIN_SECONDS < predicted < math.inf):
            return
        seconds = min(max(seconds, predicted / MAX_OUTLIER_FACTOR), predicted * MAX_OUTLIER_FACTOR)
        keep, share = 1.0 - 1.0 / MEMORY_BATCHES, min(1.0, FULL_WEIGHT_SECONDS / predicted)
        z = [term * rate * share for term, rate in zip(terms, self._guess, strict=True)]
        seconds, predicted = seconds * share, predicted * share
        self._expected = keep * self._expected + sum(z)
        self._measured = keep * self._measured + seconds
        for i, row in enumerate(self._A):
            self._b[i] = keep * self._b[i] + z[i] * seconds / predicted
            for j in range(len(row)):
                row[j] = keep * row[j] + z[i] * z[j] / predicted
        self._updates += 1
        if self._updates <= MEMORY_BATCHES or self._updates % BATCHES_PER_FIT == 0:
            self._fit()

    def _fit(self) -> None:
        """Minimise over theta with an active set: repeat until the signs of the gradient agree."""
        A, scale = np.array(self._A), self._measured / self._expected
        diagonal = A.diagonal()
        ridge = RIDGE * (diagonal + UNSEEN_RIDGE * diagonal.mean())
        A = A + np.diag(ridge)
        b, floor = np.array(self._b) + ridge * scale, MIN_RATE_SHARE * scale
        theta, free = np.linalg.solve(A, b), np.ones(len(b), bool)
        for _ in range(3 * len(b)):
            agreed = np.where(free, theta > floor, A @ theta < b)
            if (agreed == free).all():
                break
            free, theta = agreed, np.full(len(b), floor)
            theta[free] = np.linalg.solve(
                A[np.ix_(free, free)], b[free] - floor * A[np.ix_(free, ~free)].sum(axis=1)
            )
        self._theta = np.maximum(theta, floor).tolist()
        self._set_rates()

    def _set_rates(self) -> None:
        """Convert multiples of the guess to seconds per unit."""
        self.rates = tuple(t * rate for t, rate in zip(self._theta, self._guess, strict=True))


class Speed:
    """Speed of a worker relative to the cost model: 1 as predicted, 0.25 four times slower.

    initial: the starting value, worth FULL_WEIGHT_SECONDS of evidence.
    """

    def __init__(self, initial: float = 1.0) -> None:
        self._predicted = initial * FULL_WEIGHT_SECONDS
        self._measured = FULL_WEIGHT_SECONDS
        self.factor = initial

    def update(self, predicted: float, seconds: float) -> None:
        """Add a batch that took `seconds`, where the model predicted `predicted`.

        About the last ten batches count.
        """
        if not (0.0 < seconds < math.inf and MIN_SECONDS < predicted < math.inf):
            return
        seconds = min(
            max(seconds, predicted / self.factor / MAX_OUTLIER_FACTOR),
            predicted / self.factor * MAX_OUTLIER_FACTOR,
        )
        share = min(1.0, FULL_WEIGHT_SECONDS / max(predicted, seconds))
        self._predicted = 0.9 * self._predicted + share * predicted
        self._measured = 0.9 * self._measured + share * seconds
        self.factor = self._predicted / self._measured
