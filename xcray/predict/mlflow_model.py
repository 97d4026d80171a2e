"""A model directory as an MLflow `pyfunc` model: log it, load it, serve it.

MLflow copies the directory; loading it runs no pickle. Needs `pip install mlflow`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import pyfunc
from mlflow.models import ModelSignature
from mlflow.types import ParamSchema, ParamSpec

from xcray import __version__
from xcray.predict.predictor import Predictor

TOP_K = 5


def save_model(model: str | Path, path: str | Path, **options: Any) -> None:
    """Write an MLflow model with a copy of the model directory `model` to `path`.

    options: those of `mlflow.pyfunc.save_model`.
    """
    pyfunc.save_model(path=str(path), **{**_parts(model), **options})


def log_model(model: str | Path, name: str, **options: Any) -> Any:
    """Log the model directory `model` to the active run; return MLflow's `ModelInfo`.

    options: those of `mlflow.pyfunc.log_model`.
    """
    return pyfunc.log_model(name=name, **{**_parts(model), **options})


class ServedModel:
    """What MLflow calls after loading; `path` is that of a model directory."""

    def __init__(self, path: str) -> None:
        self._predictor = Predictor(path)

    def predict(
        self, model_input: Any, params: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return "label", "score" and "probability" of each row, lists from the best label on.

        A probability is None if the model has none.
        model_input: a frame with one column per field of the texts (or one column of texts), or
        whatever `Predictor.search` accepts. params: `top_k`.
        """
        rows = model_input
        if hasattr(rows, "to_dict"):
            rows = rows.to_dict("records")
            if len(model_input.columns) == 1:
                rows = [value for row in rows for value in row.values()]
        has_probabilities = self._predictor.probability_source is not None
        top_k = int((params or {}).get("top_k", TOP_K))
        answer = self._predictor.search(rows, top_k, probabilities=has_probabilities)
        values = self._predictor.probabilities(answer) if has_probabilities else None
        return [
            {
                name: [getattr(each, name) for each in row]
                for name in ("label", "score", "probability")
            }
            for row in self._predictor.scored_labels(answer, values)
        ]


_load_pyfunc = ServedModel  # the name that MLflow calls in the loader module


def _parts(model: str | Path) -> dict[str, Any]:
    """Return what MLflow stores: the files, and the module that loads them."""
    return {
        "loader_module": __name__,
        "data_path": str(model),
        "signature": ModelSignature(params=ParamSchema([ParamSpec("top_k", "long", TOP_K)])),
        "pip_requirements": [f"xcray[text]=={__version__}"],
    }
