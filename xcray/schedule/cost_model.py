"""What a batch costs: seconds from what its labels are made of, fitted while they are solved; and how fast a worker is.

Both are pure and small: a few numbers, learned one batch at a time, JSON in and out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

MEMORY = 64.0  # batches that count: a fit made on the dear labels gives way to one made on the cheap ones
RIDGE = (
    0.01  # pull towards the first guess's proportions, as a share of what the batches say of a term
)
UNSEEN = 1e-3  # and, for a term they hardly have, of what they say of the others
FLOOR = 1e-3  # no rate falls below this share of its guess: a label that costs nothing would make endless batches
OUTLIER = 8.0  # a batch that took so many times longer, or less, than foreseen counts as if by this factor
NOTHING = 1e-9  # seconds: what is foreseen to take less teaches nothing
FULL = 0.25  # seconds: a longer batch counts as if cut down to this, for a dear label is one draw, not many
FIRST = 0.05  # seconds of evidence that the first guess is worth


class CostModel:
    """Seconds = terms . rates, with rates >= 0 by recency-weighted least squares.

    guess: (T,) positive seconds for a unit of each term. In units of the guess, theta = rates / guess and
    z = terms * guess, the fit after each batch is

        min over theta >= FLOOR s   sum_b g^age(b) (z_b . theta - seconds_b)^2 / p_b  +  sum_t m_t (theta_t - s)^2

    where p_b is what the model foresaw (the variance of a batch's seconds grows with its size; batches above FULL seconds
    are scaled down to it), s the factor by which the guess is off as a whole, and m_t = RIDGE (A_tt + UNSEEN mean A) with A
    the matrix of the first sum: proportions that batches do not tell apart stay those of the guess. Raises
    ValueError for a guess that is not positive and finite.

    Example:
        >>> model = CostModel([1.0, 1.0])
        >>> for _ in range(200):
        ...     model.learn([1.0, 0.0], 2.0)
        ...     model.learn([0.0, 1.0], 0.5)
        >>> [round(rate, 1) for rate in model.rates]
        [2.0, 0.5]
    """

    def __init__(self, guess: Sequence[float]) -> None:
        self._guess = [float(rate) for rate in guess]
        if not self._guess or not all(0.0 < rate < math.inf for rate in self._guess):
            raise ValueError(
                f"a first guess of rates must be positive and finite, not {list(guess)}"
            )
        n = len(self._guess)
        self._theta = [1.0] * n
        self._A = [[0.0] * n for _ in range(n)]
        self._b = [0.0] * n  # sums over batches: z z' / p and z seconds / p
        self._guessed = FIRST
        self._took = FIRST  # sums over batches: seconds by the guess, and as measured
        self.rates: tuple[float, ...] = tuple(self._guess)

    def price(self, terms: Sequence[float]) -> float:
        """Seconds of a batch whose terms sum to `terms` (T,)."""
        return math.fsum(rate * term for rate, term in zip(self.rates, terms, strict=True))

    def learn(self, terms: Sequence[float], seconds: float) -> None:
        """A batch whose terms sum to `terms` (T,) took `seconds`; what can't be right (zero, not finite) teaches nothing."""
        foreseen = self.price(terms)
        if not (0.0 < seconds < math.inf and NOTHING < foreseen < math.inf):
            return
        seconds = min(max(seconds, foreseen / OUTLIER), foreseen * OUTLIER)
        keep, share = 1.0 - 1.0 / MEMORY, min(1.0, FULL / foreseen)
        z = [term * rate * share for term, rate in zip(terms, self._guess, strict=True)]
        seconds, foreseen = seconds * share, foreseen * share
        self._guessed = keep * self._guessed + sum(z)
        self._took = keep * self._took + seconds
        for i, row in enumerate(self._A):
            self._b[i] = keep * self._b[i] + z[i] * seconds / foreseen
            for j in range(len(row)):
                row[j] = keep * row[j] + z[i] * z[j] / foreseen
        self._fit()

    def state(self) -> dict[str, Any]:
        """Everything learned, JSON-ready."""
        sums = {"A": [list(row) for row in self._A], "b": list(self._b)}
        return {
            "guess": list(self._guess),
            "theta": list(self._theta),
            **sums,
            "guessed": self._guessed,
            "took": self._took,
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> CostModel:
        """The model that gave `state`."""
        model = cls(state["guess"])
        model._theta, model._b = list(state["theta"]), list(state["b"])
        model._A = [list(row) for row in state["A"]]
        model._guessed, model._took = state["guessed"], state["took"]
        model._name_rates()
        return model

    def _fit(self) -> None:
        """Minimise over theta by guessing which of them lie on their bound, until the signs of the gradient agree."""
        A, scale = np.array(self._A), self._took / self._guessed
        diagonal = A.diagonal()
        ridge = RIDGE * (diagonal + UNSEEN * diagonal.mean())
        A = A + np.diag(ridge)
        b, floor = np.array(self._b) + ridge * scale, FLOOR * scale
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
        self._name_rates()

    def _name_rates(self) -> None:
        """Seconds a unit from multiples of the guess."""
        self.rates = tuple(t * rate for t, rate in zip(self._theta, self._guess, strict=True))


class Speed:
    """How fast a worker is beside what the cost model foresees: 1 as foreseen, 0.25 four times slower.

    like: where to start; weight: seconds of evidence that the start is worth.
    """

    def __init__(self, like: float = 1.0, weight: float = FULL) -> None:
        self._foreseen = like * weight
        self._took = weight
        self.factor = like

    def learn(self, foreseen: float, seconds: float) -> None:
        """A batch that the model foresaw at `foreseen` seconds took `seconds`; the last ten batches or so count."""
        if not (0.0 < seconds < math.inf and NOTHING < foreseen < math.inf):
            return
        seconds = min(
            max(seconds, foreseen / self.factor / OUTLIER), foreseen / self.factor * OUTLIER
        )
        share = min(1.0, FULL / max(foreseen, seconds))
        self._foreseen = 0.9 * self._foreseen + share * foreseen
        self._took = 0.9 * self._took + share * seconds
        self.factor = self._foreseen / self._took
