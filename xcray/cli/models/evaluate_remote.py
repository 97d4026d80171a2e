"""Evaluation of models on a server: the server predicts, the measures are computed here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xcray.api.model_replies import PredictionView
from xcray.arrays import Float64, TopK, frozen, pattern
from xcray.cli.connect import locate_version
from xcray.cli.models.evaluation_rows import EvaluationRows
from xcray.cli.models.predict import BATCH_ROWS, to_instances
from xcray.data.dataset import Dataset
from xcray.data.unseen import with_unseen
from xcray.training.evaluation import EvaluationOptions, evaluate_each, label_hits, measure_ranking

if TYPE_CHECKING:  # needs httpx
    from xcray.client import Client


def evaluate_on_server(
    client: Client, models: Sequence[str], rows: EvaluationRows, options: EvaluationOptions
) -> dict[str, Any]:
    """Return the evaluation of models of a server, see `evaluate_models`.

    models: NAME, NAME:VERSION or NAME@ALIAS. ms_per_row is that of the requests.
    """

    def evaluate(
        model: str, data: Dataset, part: str, how: EvaluationOptions
    ) -> tuple[dict[str, Any], dict[str, Float64]]:
        name, number = locate_version(client, model)
        version = client.models.version(name, number)
        ks = [k for k in how.ks if k <= version["n_labels"]] or [version["n_labels"]]
        texts = rows.texts
        instances: list[Any] = to_instances(data[part].X) if texts is None else texts
        started = time.perf_counter()
        predictions = _predict(client, f"{name}:{number}", instances, max(ks))
        seconds = time.perf_counter() - started
        top, n_labels = _number_labels(predictions, data.label_names.to_pylist())
        counts = np.pad(data.label_counts, (0, n_labels - data.n_labels))
        Y = data[part].Y
        truth = pattern(Y.indptr, Y.indices, n_labels)
        truth, counts = with_unseen(truth, counts, data[part].unseen)
        entry = {
            "model": f"{name}:{number}",
            "sha256": version["sha256"],
            "solver": version["solver"],
            "labels": version["n_labels"],
            "weights": version["nnz"],
            "ms_per_row": 1e3 * seconds / truth.n_rows,
        }
        measures, drawn = measure_ranking(top, truth, ks, counts, data, how)
        hits = label_hits(top, truth)[: data.n_labels]
        return {**entry, **measures, "label_hits": hits}, drawn

    return evaluate_each(evaluate, models, rows.path, options)


def _predict(client: Client, model: str, instances: list[Any], k: int) -> list[PredictionView]:
    """Return the predictions for all instances, one request per batch."""
    answers: list[PredictionView] = []
    for start in range(0, len(instances), BATCH_ROWS):
        reply = client.predict(model, instances[start : start + BATCH_ROWS], top_k=k)
        answers += reply["predictions"]
    return answers


def _number_labels(predictions: list[PredictionView], names: list[str]) -> tuple[TopK, int]:
    """Return predictions with the label numbers of a data set, and the number of labels.

    Labels that the data set lacks have numbers after its own.
    """
    numbers = {name: number for number, name in enumerate(names)}
    labels = [
        [numbers.setdefault(label, len(numbers)) for label in each["labels"]]
        for each in predictions
    ]
    scores = [each["scores"] for each in predictions]
    return TopK(frozen(labels, np.int32), frozen(scores, np.float64)), len(numbers)
