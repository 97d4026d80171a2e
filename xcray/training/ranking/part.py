"""The training on part of the rows, and the answers of a ranker on the held-out rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import chain
from typing import Any

from xcray.arrays import CSR, TopK
from xcray.data.dataset import Dataset
from xcray.data.texts import read_texts
from xcray.index.scorer import SparseScorer
from xcray.index.search import SearchIndex
from xcray.model.directory import LinearPart
from xcray.model.model import Model
from xcray.model.ranker import Ranker
from xcray.predict.ranking import TextRanker
from xcray.system.cores import available_cores
from xcray.telemetry.progress import Progress
from xcray.training.spec import TrainSpec
from xcray.workers.pool import StopFlag


def train_on_part(
    train: Callable[..., Any],
    spec: TrainSpec,
    progress: Callable[[Progress], None],
    stop: StopFlag,
    part: Dataset,
) -> Model:
    """Return a model of the part, trained as `spec` trains the whole.

    train: `xcray.training.run.train`. A second call resumes.
    """
    folder = part.path.parent
    if not (folder / "model").exists():
        train(
            dataclasses.replace(spec, dataset=str(part.path), rank=False, auto=None),
            run_dir=folder / "run",
            out=folder / "model",
            progress=lambda each: progress(each._replace(phase="RANKING")),
            stop=stop,
            exclusive=False,  # the run of the whole training holds this directory
        )
    return Model.open(folder / "model")


def search_query(index: SearchIndex) -> Callable[[CSR, int], TopK]:
    """Return the function that answers rows by the search, on all cores."""

    def query(X: CSR, k: int) -> TopK:
        return index.query(X, k, threads=available_cores()).top

    return query


def ranked_query(ranker: Ranker, data: Dataset, index: SearchIndex) -> Callable[[CSR, int], TopK]:
    """Return the function that answers the held-out rows of a data set of texts.

    index: of the weights of the model.
    """
    assert data.text is not None
    scorer = SparseScorer(index, threads=available_cores())
    ranked = TextRanker(ranker, data.text, LinearPart(index.W, index.b, index), scorer)

    def query(X: CSR, k: int) -> TopK:
        return ranked.search([*chain.from_iterable(read_texts(data, "test"))], X, k).top

    return query
