"""Blend linear models over the same features into one: a weighted sum of their weights and biases.

Scores of parts have different scales, so each is divided by the spread of its scores on the rows
that the blend is chosen on. The shares are chosen part by part, the best part first: the blend so
far and the next part, in steps of a twentieth. Scores of the best labels of all parts are computed
once, so that a trial is a sum of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Pattern, TopK, csr, frozen
from xcray.data.dataset import Dataset, open_verified
from xcray.errors import InputError, ParameterError, ShapeMismatch
from xcray.index.scorer import SparseScorer
from xcray.index.search import SearchIndex
from xcray.kernels.row_norm import normalize_rows
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.measures import evaluate
from xcray.model.exchange.weights import weights_of
from xcray.model.model import Model
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.training.calibration.fit import split_rows, trained_on, unseen_part
from xcray.training.edit.apply import (
    check_features,
    check_output_path,
    match_labels,
    renumber_labels,
)

BLEND: Final = "blend"  # the solver in the manifest
CANDIDATES: Final = 50  # labels of each part per row
STEPS: Final = 20
MAX_LOSS: Final = 0.0005  # of the objective, by pruning
PRUNED_SHARES: Final = (0.7, 0.5, 0.3, 0.1, 0.0)
KS: Final = (1, 3, 5)
CHUNK_BYTES: Final = 128 << 20  # of the rows whose scores of all labels are in memory
SCORE_BYTES: Final = 20  # of a score: in a sparse product and in a dense row


class BlendRows(NamedTuple):
    """Rows to choose or to measure on: X (n, D) and their labels Y (n, K or more)."""

    X: CSR
    Y: Pattern


class BlendWeights(NamedTuple):
    """The weights (K, D) and biases (K,) of a linear model."""

    W: CSR
    b: Float32


def blend_models(
    models: Sequence[str | Path],
    dataset: str | Path,
    out: str | Path,
    *,
    part: str = "test",
    seed: int = 0,
) -> Model:
    """Publish one linear model at `out` whose scores are a weighted sum of those of the models.

    dataset: with rows that none of the models was trained on, in `part`. Copies of training rows
    are left out, and the others are split as for `calibrate`: the weights are chosen on one half,
    for P@1 + nDCG@5, where the blend is at least as good as the best of the models; the measures
    are those of the other half. Weights close to zero are left out while that costs next to
    nothing. Probabilities, thresholds and rankers of the models are not carried over. Raises
    ParameterError for fewer than two models or a chain of stages, ShapeMismatch for models with
    other labels or features, and the errors of `calibrate` for rows.
    """
    check_output_path(out)
    opened = [Model.open(path) for path in models]
    _check_parts(opened)
    data = open_verified(dataset)
    rows, others, left_out = _split(opened, data, part, seed)
    parts = [BlendWeights(*weights_of(model)[:2]) for model in opened]
    shares, blend = _choose(parts, rows)
    measured = [_measure(each, others) for each in (*parts, blend)]
    report = {
        "rows": {"chosen": rows.X.n_rows, "measured": others.X.n_rows, "left_out": left_out},
        "parts": [
            {
                "sha256": model.sha256,
                "solver": model.manifest["solver"],
                "params": model.manifest["params"],
                "data": sorted(trained_on(model)),
                "share": float(share),
                "measures": measures,
            }
            for model, share, measures in zip(opened, shares, measured[:-1], strict=True)
        ],
        "weights": [each.W.nnz for each in (*parts, blend)],
    }
    first = opened[0]
    content = ModelContent(
        blend.W,
        blend.b,
        first.label_names,
        first.feature_names,
        text=first.text,
        row_norm=first.row_norm,
        label_texts=first.label_texts,
    )
    record = TrainingRecord(
        BLEND,
        {"parts": [model.sha256 for model in opened], "shares": shares.tolist()},
        data.content_hash,
        measures=measured[-1],
        report={"blend": report},
        reading=first.reading,
    )
    return write_model(out, content, record)


def _split(
    models: Sequence[Model], data: Dataset, part: str, seed: int
) -> tuple[BlendRows, BlendRows, int]:
    """Return the rows to choose on, those to measure on, and the number of rows left out."""
    model = models[0]
    check_features(model, data)
    split = unseen_part(models, data, part)
    place, counts = match_labels(model.labels, data)
    Y = renumber_labels(split.Y, place, len(counts))
    usable, left_out, chosen = split_rows(split.X, data.train.X if part == "test" else None, seed)
    if chosen.all() or not chosen.any():
        raise InputError(
            f"{len(usable):,} rows are too few to choose on one half and to measure on the other "
            f"({left_out:,} others are copies of training rows): hold out more or other rows",
            code="NO_HELD_OUT",
        )
    rows, others = (
        BlendRows(
            normalize_rows(take_rows(split.X, each), model.row_norm), take_pattern_rows(Y, each)
        )
        for each in (frozen(usable[chosen], np.int64), frozen(usable[~chosen], np.int64))
    )
    return rows, others, left_out


def _check_parts(models: Sequence[Model]) -> None:
    """Raise ParameterError or ShapeMismatch unless the models can be blended."""
    if len(models) < 2:
        raise ParameterError("a blend needs at least two models: name another one")
    first = models[0]
    for model in models:
        model.require_linear()
        texts = [None if each.text is None else each.text.fingerprint for each in (first, model)]
        if texts[0] != texts[1] or first.feature_names != model.feature_names:
            raise ShapeMismatch(
                f"{model.path.name} has other features than {first.path.name}: blend models that "
                "were trained on the same data set",
                code="OTHER_FEATURES",
            )
        if first.label_names != model.label_names:
            raise ShapeMismatch(
                f"{model.path.name} has other labels than {first.path.name}, or another order of "
                "them: blend models that were trained on the same data set"
            )
        if first.row_norm != model.row_norm:
            raise ShapeMismatch(
                f"{model.path.name} has row_norm {model.row_norm}, {first.path.name} "
                f"{first.row_norm}: train both with the same"
            )


def _choose(parts: Sequence[BlendWeights], rows: BlendRows) -> tuple[Float64, BlendWeights]:
    """Return the shares of the parts, and their blend, at least as good as the best of them."""
    tops = [_search(each, rows.X, CANDIDATES) for each in parts]
    labels = np.sort(np.concatenate([each.labels for each in tops], axis=1), axis=1)
    scale = np.array([_spread(each) for each in tops])
    scores = [
        _scores_of(each, rows.X, labels) / size for each, size in zip(parts, scale, strict=True)
    ]
    values = [_objective(_best(labels, each), rows.Y) for each in scores]
    order = np.argsort(-np.array(values), kind="stable")
    first = order[0]
    alone, total, reached = np.eye(len(parts))[first], scores[first], values[first]
    shares = alone
    for other in order[1:]:
        tries = np.arange(1, STEPS) / STEPS
        mixed = [(1.0 - t) * total + t * scores[other] for t in tries]
        found = [_objective(_best(labels, each), rows.Y) for each in mixed]
        best = int(np.argmax(found))
        if found[best] > reached:
            reached, total = found[best], mixed[best]
            shares = (1.0 - tries[best]) * shares + tries[best] * np.eye(len(parts))[other]
    blend = _sum(parts, shares * scale[first] / scale)
    for share in PRUNED_SHARES:
        pruned = _prune(blend, share)
        value = _objective(_best(labels, _scores_of(pruned, rows.X, labels)), rows.Y)
        if value < max(reached - MAX_LOSS, values[first]):
            continue
        if _objective(_search(pruned, rows.X, max(KS)), rows.Y) >= values[first]:
            return shares, pruned
    # the best part itself: only possible if labels outside of the candidates are in the answers
    return alone, parts[first]


def _search(part: BlendWeights, X: CSR, k: int) -> TopK:
    """Return the k best labels of rows."""
    return SparseScorer(SearchIndex.build(part.W, part.b)).top_k(X, k).top


def _spread(top: TopK) -> float:
    """Return the mean distance of the best and the tenth score of a row, or 1 if it is 0."""
    distance = top.scores[:, 0] - top.scores[:, min(9, top.scores.shape[1] - 1)]
    return float(distance.mean()) or 1.0


def _scores_of(part: BlendWeights, X: CSR, labels: Any) -> Any:
    """Return the scores of labels (n, m), sorted by row; minus infinity for repeated labels."""
    W, features, scores = part.W.to_scipy().T.tocsr(), X.to_scipy(), np.empty(labels.shape)
    n_rows = max(1, CHUNK_BYTES // (SCORE_BYTES * max(1, len(part.b))))
    for start in range(0, len(labels), n_rows):
        rows = slice(start, start + n_rows)
        scores[rows] = np.take_along_axis((features[rows] @ W).toarray(), labels[rows], axis=1)
    scores += part.b[labels]
    scores[:, 1:][labels[:, 1:] == labels[:, :-1]] = -np.inf
    return scores


def _best(labels: Any, scores: Any) -> TopK:
    """Return the best of these labels."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, : max(KS)]
    best, values = (np.take_along_axis(each, order, axis=1) for each in (labels, scores))
    return TopK(frozen(best, np.int32), frozen(values, np.float64))


def _objective(top: TopK, Y: Pattern) -> float:
    """Return P@1 + nDCG@5."""
    found = evaluate(top, Y, ks=KS)
    return found["P@1"] + found.get("nDCG@5", 0.0)


def _measure(part: BlendWeights, rows: BlendRows) -> dict[str, float]:
    """Return P@k and nDCG@k."""
    found = evaluate(_search(part, rows.X, max(KS)), rows.Y, ks=KS)
    return {name: value for name, value in found.items() if name.startswith(("P@", "nDCG@"))}


def _sum(parts: Sequence[BlendWeights], factors: Float64) -> BlendWeights:
    """Return the weighted sum of parts; those with a factor of 0 add nothing."""
    used = [(part, factor) for part, factor in zip(parts, factors, strict=True) if factor]
    W = sum(factor * part.W.to_scipy() for part, factor in used).tocsr()
    W.sort_indices()
    bias = sum(factor * part.b.astype(np.float64) for part, factor in used)
    return BlendWeights(csr(W.indptr, W.indices, W.data, W.shape[1]), frozen(bias, np.float32))


def _prune(blend: BlendWeights, share: float) -> BlendWeights:
    """Return the blend without this share of its weights, the smallest ones, and without zeros."""
    W = blend.W
    size = np.abs(W.data)
    keep = size > (np.quantile(size, share) if share and len(size) else 0.0)
    indptr = np.concatenate([[0], np.cumsum(keep)])[W.indptr]
    return BlendWeights(csr(indptr, W.indices[keep], W.data[keep], W.n_cols), blend.b)
