"""Prediction with a model: exact best labels of texts or sparse rows.

Results can have probabilities and explanations. Needs a model directory only: no Ray, no trainer,
no scikit-learn.
"""

from xcray.predict.arrow import to_arrow
from xcray.predict.explain import Contribution, Explanation
from xcray.predict.labels import SET_PREFIX, SetLookup
from xcray.predict.predictor import Predictor, ScoredLabel

__all__ = [
    "SET_PREFIX",
    "Contribution",
    "Explanation",
    "Predictor",
    "ScoredLabel",
    "SetLookup",
    "to_arrow",
]
