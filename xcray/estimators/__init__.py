"""Estimators in scikit-learn's API: fit, predict and score with sparse X and sparse Y."""

from xcray.estimators.dsmlr import DSMLR
from xcray.estimators.indexed_svm import IndexedSVM
from xcray.estimators.least_squares import LeastSquares
from xcray.estimators.memoir import MEMOIR
from xcray.estimators.ppdsparse import PPDSparse
from xcray.estimators.staged import CalibratedLeastSquares, StagewiseRegression

__all__ = [
    "DSMLR",
    "MEMOIR",
    "CalibratedLeastSquares",
    "IndexedSVM",
    "LeastSquares",
    "PPDSparse",
    "StagewiseRegression",
]
