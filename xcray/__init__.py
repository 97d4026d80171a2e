"""Extreme classification on Ray: sparse linear models for very many labels, trained in parallel, answered exactly.

The public names are loaded when they are first used, so `import xcray` is quick and loads neither Ray nor
FastAPI nor scikit-learn:

    PPDSparse, DSMLR             the scikit-learn face: fit(X, Y), predict(X)
    Dataset, train, TrainSpec    train from a data set directory
    Model, Predictor, evaluate   read a model, ask it, measure it
    BulkSpec, predict_bulk       answer a whole file of rows, into Parquet files
    Client                       the same over REST
    XcrayError and its children  what can go wrong
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xcray.batch import BulkSpec, predict_bulk
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
    from xcray.estimators import DSMLR, PPDSparse
    from xcray.metrics import evaluate
    from xcray.model.model import Model
    from xcray.predict import Predictor
    from xcray.training import TrainSpec, train
    from xcray.training.calibration.apply import calibrate

__version__ = "0.1.0"

_EXPORTS = {
    "DSMLR": "xcray.estimators",
    "BulkSpec": "xcray.batch",
    "Client": "xcray.client",
    "Conflict": "xcray.errors",
    "Corrupt": "xcray.errors",
    "DataError": "xcray.errors",
    "Dataset": "xcray.data.dataset",
    "Fenced": "xcray.errors",
    "InputError": "xcray.errors",
    "Model": "xcray.model.model",
    "NotCalibrated": "xcray.errors",
    "NotFound": "xcray.errors",
    "PPDSparse": "xcray.estimators",
    "ParameterError": "xcray.errors",
    "Predictor": "xcray.predict",
    "Refused": "xcray.errors",
    "ShapeMismatch": "xcray.errors",
    "Stopped": "xcray.errors",
    "TrainSpec": "xcray.training",
    "Unavailable": "xcray.errors",
    "XcrayError": "xcray.errors",
    "calibrate": "xcray.training.calibration.apply",
    "evaluate": "xcray.metrics",
    "predict_bulk": "xcray.batch",
    "train": "xcray.training",
}  # public name -> the module that defines it

__all__ = [
    "DSMLR",
    "BulkSpec",
    "Client",
    "Conflict",
    "Corrupt",
    "DataError",
    "Dataset",
    "Fenced",
    "InputError",
    "Model",
    "NotCalibrated",
    "NotFound",
    "PPDSparse",
    "ParameterError",
    "Predictor",
    "Refused",
    "ShapeMismatch",
    "Stopped",
    "TrainSpec",
    "Unavailable",
    "XcrayError",
    "__version__",
    "calibrate",
    "evaluate",
    "predict_bulk",
    "train",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room on first use (PEP 562). Raises Unavailable when it needs an extra that is not installed."""
    if name not in _EXPORTS:
        raise AttributeError(
            f"module 'xcray' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    try:
        value = getattr(import_module(_EXPORTS[name]), name)
    except ModuleNotFoundError as error:
        raise import_module("xcray.errors").lacking(error) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
