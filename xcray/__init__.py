"""Extreme classification on Ray: sparse linear models over very many labels, with exact top-k.

Public names are imported on first use. `import xcray` is fast and imports neither Ray nor FastAPI
nor scikit-learn:

    PPDSparse, DSMLR, IndexedSVM, LeastSquares, CalibratedLeastSquares, StagewiseRegression,
    MEMOIR
                                     scikit-learn estimators: fit(X, Y), predict(X)
    Dataset, train, TrainSpec        train from a data set directory
    Model, Predictor, evaluate       open a model, predict with it, evaluate it
    calibrate, fit_thresholds        fit probabilities, or thresholds per label, to a model's scores
    BatchPredictSpec, predict_batch  predict a whole file of rows, into Parquet files
    Client                           the same over REST
    XcrayError and its subclasses    errors
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xcray.batch import BatchPredictSpec, predict_batch
    from xcray.client import Client
    from xcray.data.dataset import Dataset
    from xcray.errors import (
        Conflict,
        Corrupt,
        DataError,
        Fenced,
        InputError,
        NotCalibrated,
        NotFound,
        ParameterError,
        Refused,
        ShapeMismatch,
        Stopped,
        Unavailable,
        XcrayError,
    )
    from xcray.estimators import (
        DSMLR,
        MEMOIR,
        CalibratedLeastSquares,
        IndexedSVM,
        LeastSquares,
        PPDSparse,
        StagewiseRegression,
    )
    from xcray.measures import evaluate
    from xcray.model.model import Model
    from xcray.predict import Predictor
    from xcray.training import TrainSpec, train
    from xcray.training.edit.calibrate import calibrate, fit_thresholds
    from xcray.training.tune import TuneSpec, tune

__version__ = "0.1.0"

# public name -> the module that defines it
_EXPORTS = {
    "DSMLR": "xcray.estimators",
    "MEMOIR": "xcray.estimators",
    "BatchPredictSpec": "xcray.batch",
    "CalibratedLeastSquares": "xcray.estimators",
    "Client": "xcray.client",
    "Conflict": "xcray.errors",
    "Corrupt": "xcray.errors",
    "DataError": "xcray.errors",
    "Dataset": "xcray.data.dataset",
    "Fenced": "xcray.errors",
    "IndexedSVM": "xcray.estimators",
    "InputError": "xcray.errors",
    "LeastSquares": "xcray.estimators",
    "Model": "xcray.model.model",
    "NotCalibrated": "xcray.errors",
    "NotFound": "xcray.errors",
    "PPDSparse": "xcray.estimators",
    "ParameterError": "xcray.errors",
    "Predictor": "xcray.predict",
    "Refused": "xcray.errors",
    "ShapeMismatch": "xcray.errors",
    "StagewiseRegression": "xcray.estimators",
    "Stopped": "xcray.errors",
    "TrainSpec": "xcray.training",
    "TuneSpec": "xcray.training.tune",
    "Unavailable": "xcray.errors",
    "XcrayError": "xcray.errors",
    "calibrate": "xcray.training.edit.calibrate",
    "evaluate": "xcray.measures",
    "fit_thresholds": "xcray.training.edit.calibrate",
    "predict_batch": "xcray.batch",
    "train": "xcray.training",
    "tune": "xcray.training.tune",
}

__all__ = [
    "DSMLR",
    "MEMOIR",
    "BatchPredictSpec",
    "CalibratedLeastSquares",
    "Client",
    "Conflict",
    "Corrupt",
    "DataError",
    "Dataset",
    "Fenced",
    "IndexedSVM",
    "InputError",
    "LeastSquares",
    "Model",
    "NotCalibrated",
    "NotFound",
    "PPDSparse",
    "ParameterError",
    "Predictor",
    "Refused",
    "ShapeMismatch",
    "StagewiseRegression",
    "Stopped",
    "TrainSpec",
    "TuneSpec",
    "Unavailable",
    "XcrayError",
    "__version__",
    "calibrate",
    "evaluate",
    "fit_thresholds",
    "predict_batch",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562).

    Raises Unavailable if the module needs an extra that is not installed.
    """
    if name not in _EXPORTS:
        raise AttributeError(
            f"module 'xcray' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    try:
        value = getattr(import_module(_EXPORTS[name]), name)
    except ModuleNotFoundError as error:
        raise import_module("xcray.errors").missing_extra(error) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether they are imported yet or not."""
    return sorted(__all__)
