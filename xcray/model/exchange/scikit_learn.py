"""One-vs-rest linear classifiers of scikit-learn, in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcray.arrays import csr_from, frozen
from xcray.errors import InputError
from xcray.model.exchange.weights import ForeignWeights


def weights_from(estimator: Any) -> ForeignWeights:
    """Return the weights of a fitted linear classifier.

    estimator: has `classes_`, and `coef_` and `intercept_`, or `estimators_` that have them (as
    OneVsRestClassifier). Of two classes with one vector, the second has the vector and the first
    its negative. Raises InputError for another object.
    """
    parts = getattr(estimator, "estimators_", [estimator])
    try:
        coefficients = [np.atleast_2d(_to_dense(part.coef_)) for part in parts]
        biases = [
            np.broadcast_to(part.intercept_, len(coef))
            for part, coef in zip(parts, coefficients, strict=True)
        ]
        labels = [str(name) for name in estimator.classes_]
    except AttributeError as error:
        raise InputError(
            f"{type(estimator).__name__} is not a fitted linear classifier: {error}"
        ) from None
    W, b = np.concatenate(coefficients), np.concatenate(biases)
    if len(W) == 1 and len(labels) == 2:
        W, b = np.concatenate([-W, W]), np.concatenate([-b, b])
    if len(W) != len(labels):
        raise InputError(f"there are {len(W)} vectors of weights for {len(labels)} classes")
    return ForeignWeights(csr_from(W), frozen(b, np.float32), labels)


def _to_dense(matrix: Any) -> np.ndarray:
    """Return a dense array of a dense or sparse matrix."""
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
