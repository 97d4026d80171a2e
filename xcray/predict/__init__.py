"""Ask a model: the best labels of texts or sparse rows, exactly, with probabilities and the features that made them the best.

Needs a model directory and nothing else: no Ray, no trainer, no scikit-learn.
"""

from xcray.predict.arrow import answer_table
from xcray.predict.explain import Contribution, Explanation
from xcray.predict.labels import SET, Sets
from xcray.predict.predictor import Predictor, Scored

__all__ = ["SET", "Contribution", "Explanation", "Predictor", "Scored", "Sets", "answer_table"]
