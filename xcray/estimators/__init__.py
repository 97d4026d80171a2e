"""The scikit-learn face: estimators with fit, predict and score that take sparse X and sparse Y."""

from xcray.estimators.dsmlr import DSMLR
from xcray.estimators.ppdsparse import PPDSparse

__all__ = ["DSMLR", "PPDSparse"]
