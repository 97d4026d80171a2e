"""Evaluation of several models on the same rows: measures with bootstrap intervals, and timing.

All models are measured on the same rows, true labels and bootstrap samples, so that differences
between models are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from xcray.api.gate import check_gate, parse_gate, ranks_of
from xcray.arrays import CSR, Float64, Int64, Pattern, TopK, distinct
from xcray.data.data_warnings import data_warnings
from xcray.data.dataset import Dataset, open_verified
from xcray.data.texts import TEXTS, texts_as
from xcray.data.unseen import with_unseen
from xcray.errors import InputError, NotFound, ParameterError
from xcray.kernels.sparse import row_range
from xcray.measures import (
    by_frequency,
    discounts,
    ideal_dcg,
    inverse_propensities,
    labelled_rows,
    matches,
    weighted_hits,
)
from xcray.model.model import Model
from xcray.predict import Predictor
from xcray.solvers import find_solver
from xcray.training.calibration.fit import held_out_part
from xcray.training.capacity.monitor import memory_bytes
from xcray.training.edit.apply import check_features, match_labels, renumber_labels

GROUPS: Final = ("tail", "middle", "head")  # labels with a third of the training positives each
N_SAMPLES = 200
CONFIDENCE = 0.95
MAX_CHANGED_LABELS: Final = 10  # labels listed that gained, and that lost


class EvaluationOptions(NamedTuple):
    """Options of an evaluation.

    part: "test" or "train"; None for test rows, or training rows if there are no others. ks: as in
    `xcray.measures.evaluate`. n_samples: bootstrap samples (0 for none), drawn with `seed`.
    threads: of the search. by: the value of a field of each row; measures are also given by value.
    """

    part: str | None = None
    ks: Sequence[int] = (1, 3, 5)
    n_samples: int = N_SAMPLES
    seed: int = 0
    threads: int = 1
    by: Sequence[str] | None = None


class RowSums(NamedTuple):
    """Measures that are ratios of sums over rows: (n, m) float64 numerators and denominators.

    names: the m measures. hits: (n, k) bool. cells: by k, pairs of row and label for macro-F1.
    """

    names: tuple[str, ...]
    above: Float64
    below: Float64
    hits: Any
    cells: dict[int, list[tuple[Any, Any]]]


M = TypeVar("M")
Evaluate: TypeAlias = Callable[
    [M, Dataset, str, EvaluationOptions], tuple[dict[str, Any], dict[str, Float64]]
]


def evaluate_models(
    models: Sequence[Path | str], dataset: Path | str, options: EvaluationOptions | None = None
) -> dict[str, Any]:
    """Return the evaluation of model directories on a data set with the models' features; JSON.

    "models": per model how it was trained (see `describe_training`), its "measures" by name (P@k,
    nDCG@k, recall@k, PSP@k; F1@k, the mean over rows, micro-F1@k and macro-F1@k of the sets of the
    first k labels; fractions), per measure its "intervals" (standard error, lower and upper end of
    the 95 % bootstrap interval), "differences" to the first model with paired intervals,
    "labels_gained" and "labels_lost" against it (see `changed_labels`), "ranks":
    by rank r, the share of true labels among the first r answers (DS-MLR, appendix B), up to the
    largest k, "by_frequency" (tail, middle and head: a third of the training positives each),
    "by_value" (see `EvaluationOptions.by`), and "ms_per_row" of the search. "warnings": see
    `xcray.data.data_warnings`. Labels are matched by name, and true labels that a model lacks count
    as misses. Rows without labels are left out ("rows_without_labels" of "rows"). Raises NotFound,
    Corrupt, ShapeMismatch for other features, InputError without rows, ParameterError. Source of
    the bootstrap: Efron and Tibshirani, 1993, chapters 6 and 13.
    """
    return evaluate_each(evaluate_model, [Path(path) for path in models], dataset, options)


def compare_models(
    models: Sequence[Path | str], dataset: Path | str, gate: str | None = None, threads: int = 1
) -> dict[str, Any]:
    """Return the evaluation of models, where all after the first have "gate" and "passed".

    gate: conditions on their differences to the first, see `xcray.api.gate`. It needs held-out
    rows (InputError NO_HELD_OUT), because training rows favour the model that has seen them.
    """
    conditions = [] if gate is None else parse_gate(gate)
    if conditions:
        held_out_part(Dataset.open(dataset))
    options = EvaluationOptions(ks=ranks_of(conditions), threads=threads)
    document = evaluate_models(models, dataset, options)
    for entry in document["models"][1:]:
        entry |= check_gate(conditions, entry["differences"])
    return document


def evaluate_each(
    evaluate: Evaluate[M],
    models: Sequence[M],
    dataset: Path | str,
    options: EvaluationOptions | None = None,
) -> dict[str, Any]:
    """Return the evaluation of models of any kind, see `evaluate_models`.

    evaluate: returns the entry and the bootstrap samples of one model, see `evaluate_model`.
    """
    options = options or EvaluationOptions()
    if options.n_samples < 0 or not options.ks or min(options.ks) < 1:
        raise ParameterError("use at least one k, each k >= 1, and at least 0 bootstrap samples")
    data = open_verified(dataset)
    part = options.part or ("train" if data.test is None else "test")
    if not data[part].n_labelled:
        raise InputError(
            f"part {part} of data set {data.name} has no rows with labels", code="NO_ROWS"
        )
    entries, samples, hits = [], [], []
    for model in models:
        entry, drawn = evaluate(model, data, part, options)
        entries.append(entry)
        samples.append(drawn)
        hits.append(entry.pop("label_hits"))
    for entry, drawn, found in zip(entries[1:], samples[1:], hits[1:], strict=True):
        entry["differences"] = compare_samples(entry, drawn, entries[0], samples[0])
        entry |= changed_labels(data, part, hits[0], found)
    unlabelled = data[part].n_rows - data[part].n_labelled
    return {
        "dataset": data.name,
        "part": part,
        "rows": data[part].n_rows,
        "rows_without_labels": unlabelled,
        "labels": data.n_labels,
        "bootstrap": {"samples": options.n_samples, "seed": options.seed, "confidence": CONFIDENCE},
        "warnings": data_warnings(data),
        "models": entries,
    }


def describe_training(model: Model) -> dict[str, Any]:
    """Return how a model was trained: solver, parameters that are not the defaults, and cost.

    seconds: of the whole training; core_seconds: of solving; memory_bytes: the largest growth of
    the process, and its workers in other processes. All are None if unknown.
    """
    params, report = dict(model.manifest["params"]), model.manifest["report"]
    solver = str(model.manifest["solver"])
    declared = find_solver(solver)
    usual = {each.name: each.default for each in fields(declared)} if declared else {}
    return {
        "solver": solver,
        "params": {name: value for name, value in params.items() if value != usual.get(name)},
        "seconds": sum(report["seconds"].values()) if "seconds" in report else None,
        "core_seconds": report.get("core_seconds"),
        "memory_bytes": memory_bytes(report.get("preflight", {})),
    }


def evaluate_model(
    path: Path, data: Dataset, part: str, options: EvaluationOptions
) -> tuple[dict[str, Any], dict[str, Float64]]:
    """Return one model's entry and its bootstrap samples by measure: (n_samples,) each."""
    model = Model.open(path)
    X = _features(model, data, part)
    names = model.answer_names.to_pylist()
    place, counts = match_labels(names, data)
    if not np.any(place < model.n_labels):
        raise NotFound(
            f"model {path} has no label of data set {data.name}: the names of the labels differ",
            code="NO_COMMON_LABEL",
        )
    truth = renumber_labels(data[part].Y, place, len(counts))
    truth, counts = with_unseen(truth, counts, data[part].unseen)
    usable = [k for k in dict.fromkeys(options.ks) if k <= model.n_labels] or [model.n_labels]
    predictor = Predictor(model, threads=options.threads)
    rows: Any = X
    if model.ranker is not None and f"{part}/{TEXTS}" in data.files:
        rows = [*(texts_as(data, part, model.text_fields) or ())] or X
    predictor.predict(row_range(X, 0, 1), 1)  # loads the kernels
    started = time.perf_counter()
    top = predictor.search(rows, max(usable)).top
    seconds = time.perf_counter() - started
    entry = {
        "model": str(path),
        "sha256": model.sha256,
        **describe_training(model),
        "labels": model.n_labels,
        "labels_missing": int(np.count_nonzero(place >= len(names))),
        "weights": model.nnz,
        "ms_per_row": 1e3 * seconds / truth.n_rows,
    }
    measures, drawn = measure_ranking(top, truth, usable, counts, data, options)
    return {**entry, **measures, "label_hits": label_hits(top, truth)[place]}, drawn


def label_hits(top: TopK, truth: Pattern) -> Int64:
    """Return how often each label was answered rightly, in all answers of `top`: (K,)."""
    return np.bincount(top.labels[matches(top, truth)], minlength=truth.n_cols).astype(np.int64)


def changed_labels(data: Dataset, part: str, before: Int64, after: Int64) -> dict[str, Any]:
    """Return the labels with the largest gains and losses of right answers.

    before, after: hits by label of the data set. "labels_gained" and "labels_lost" are lists of
    "label", its true "rows" in the part, and "hits" before and after.
    """
    change, rows = after - before, np.bincount(data[part].Y.indices, minlength=data.n_labels)

    def listed(sign: int) -> list[dict[str, Any]]:
        order = np.argsort(-sign * change, kind="stable")[:MAX_CHANGED_LABELS]
        order = order[sign * change[order] > 0]
        names = data.label_names.take(order).to_pylist()
        return [
            {"label": name, "rows": int(rows[i]), "hits": [int(before[i]), int(after[i])]}
            for i, name in zip(order, names, strict=True)
        ]

    return {"labels_gained": listed(1), "labels_lost": listed(-1)}


def _features(model: Model, data: Dataset, part: str) -> CSR:
    """Return the rows of a part with the model's features.

    Where a data set keeps its texts, they are read by the pipeline of the model, which `auto` can
    have chosen, or which reads only some of their fields. Raises ShapeMismatch for other features.
    """
    if f"{part}/{TEXTS}" in data.files and model.text is not None and data.text is not None:
        texts = texts_as(data, part, model.text_fields)
        if texts is not None and data.text.fingerprint != model.text.fingerprint:
            return model.text.transform(texts)
    check_features(model, data)
    return data[part].X


def measure_ranking(
    top: TopK,
    truth: Pattern,
    ks: Sequence[int],
    counts: Any,
    data: Dataset,
    options: EvaluationOptions,
) -> tuple[dict[str, Any], dict[str, Float64]]:
    """Return measures, intervals and groups of an entry, and bootstrap samples by measure.

    top: predicted labels of the rows, in the numbering of `truth` and `counts` (training rows).
    Rows without labels are left out.
    """
    has_labels = np.diff(truth.indptr) > 0
    top, truth = labelled_rows(top, truth)
    sums = row_sums(top, truth, ks, counts, data.train.n_rows)
    drawn = draw_samples(sums, data.n_labels, options)
    groups = by_frequency(top, truth, counts, ks=ks, n_groups=len(GROUPS), equal="positives")
    entry = {
        "measures": measures_of(sums, data.n_labels, np.ones(truth.n_rows)),
        "ranks": rank_distribution(sums.hits, truth),
        "intervals": {name: interval_of(values) for name, values in drawn.items()},
        "by_frequency": [
            {"group": name, **group} for name, group in zip(GROUPS, groups, strict=True)
        ],
    }
    if options.by is not None:
        values = np.array(options.by, object)[has_labels]
        entry["by_value"] = [
            {
                "value": value,
                "rows": int(np.count_nonzero(values == value)),
                "measures": measures_of(sums, data.n_labels, 1.0 * (values == value)),
            }
            for value in sorted(set(values))
        ]
    return entry, drawn


def rank_distribution(hits: Any, Y: Pattern) -> dict[str, float]:
    """Return the share of true labels whose rank is at most r, by r: 1, 2, 5, 10, 20, 50 and so on.

    hits: (n, m), whether the answer at each rank is a true label; ranks go up to m.
    """
    width = hits.shape[1]
    ranks = [n * 10**power for power in range(len(str(width))) for n in (1, 2, 5)]
    found = np.cumsum(np.asarray(hits).sum(axis=0))
    return {str(rank): float(found[rank - 1] / max(Y.nnz, 1)) for rank in ranks if rank <= width}


def row_sums(top: TopK, Y: Pattern, ks: Sequence[int], label_counts: Any, n_train: int) -> RowSums:
    """Return the sums of every row whose ratios are the measures that need no sum per label."""
    hits = matches(top, Y)
    true = np.diff(Y.indptr)
    gains, best = weighted_hits(top, Y, max(ks), inverse_propensities(label_counts, n_train))
    one = np.ones(Y.n_rows)
    columns: dict[str, tuple[Any, Any]] = {}
    for k in ks:
        n_hits = hits[:, :k].sum(axis=1)
        n_predicted = (top.labels[:, :k] >= 0).sum(axis=1)
        columns[f"P@{k}"] = (n_hits, k * one)
        columns[f"nDCG@{k}"] = (hits[:, :k] @ discounts(k) / ideal_dcg(Y, k), one)
        columns[f"recall@{k}"] = (n_hits / np.maximum(true, 1), one)
        columns[f"F1@{k}"] = (2 * n_hits / (true + np.maximum(n_predicted, 1)), one)
        columns[f"PSP@{k}"] = (gains[:, :k].sum(axis=1), best[:, :k].sum(axis=1))
        columns[f"micro-F1@{k}"] = (2 * n_hits, true + n_predicted)
    above, below = (
        np.column_stack([pair[side] for pair in columns.values()]).astype(np.float64)
        for side in (0, 1)
    )
    cells = {k: _label_cells(hits[:, :k], top.labels[:, :k], Y) for k in ks}
    return RowSums(tuple(columns), above, below, hits, cells)


def _label_cells(hits: Any, labels: Any, Y: Pattern) -> list[tuple[Any, Any]]:
    """Return rows and labels of right answers, of all answers and of true labels.

    Only of labels with a right answer, numbered from 0: the F1 of the others is 0 in any sample.
    """
    cells = [(mask.nonzero()[0], labels[mask]) for mask in (hits, labels >= 0)]
    row_of = np.repeat(np.arange(Y.n_rows), np.diff(Y.indptr))
    cells.append((row_of, Y.indices[Y.indptr[0] : Y.indptr[-1]]))
    number, found = np.full(Y.n_cols, -1), distinct(cells[0][1])
    number[found] = np.arange(len(found))
    return [(rows[number[ids] >= 0], number[ids[number[ids] >= 0]]) for rows, ids in cells]


def measures_of(sums: RowSums, n_labels: int, times: Any) -> dict[str, float]:
    """Return the measures of a sample that holds row i `times[i]` times: times is (n,).

    n_labels: labels of the data set, over which macro-F1 is the mean.
    """
    below = times @ sums.below
    ratios = np.divide(times @ sums.above, below, out=np.zeros(len(below)), where=below > 0)
    out = dict(zip(sums.names, ratios.tolist(), strict=True))
    for k, cells in sums.cells.items():
        n_hits, predicted, true = (np.bincount(labels, times[rows]) for rows, labels in cells)
        out[f"macro-F1@{k}"] = float(
            (2 * n_hits / np.maximum(true + predicted, 1)).sum() / max(n_labels, 1)
        )
    return out


def draw_samples(sums: RowSums, n_labels: int, options: EvaluationOptions) -> dict[str, Float64]:
    """Return the measures of bootstrap samples: (n_samples,) per measure.

    They depend on the seed and the number of rows only, so models are compared on the same rows.
    """
    drawn = [
        measures_of(sums, n_labels, times)
        for times in _row_counts(len(sums.hits), options.n_samples, options.seed)
    ]
    return {name: np.array([each[name] for each in drawn]) for name in (drawn[0] if drawn else ())}


def interval_of(values: Float64) -> dict[str, float]:
    """Return standard error, and lower and upper end of the percentile interval of samples."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    error = values.std(ddof=1) if len(values) > 1 else 0.0
    return {"standard_error": float(error), "low": float(low), "high": float(high)}


def compare_samples(
    entry: Mapping[str, Any],
    drawn: Mapping[str, Float64],
    first: Mapping[str, Any],
    first_drawn: Mapping[str, Float64],
) -> dict[str, Any]:
    """Return the differences of a model's measures to the first model's, with their intervals."""
    return {
        name: {
            "difference": entry["measures"][name] - first["measures"][name],
            **(interval_of(drawn[name] - first_drawn[name]) if name in drawn else {}),
        }
        for name in entry["measures"]
        if name in first["measures"]
    }


def _row_counts(n_rows: int, n_samples: int, seed: int) -> Iterator[Any]:
    """Yield how often each row occurs in a bootstrap sample: (n_rows,) float64."""
    random = np.random.default_rng(seed)
    for _ in range(n_samples):
        yield 1.0 * np.bincount(random.integers(0, n_rows, n_rows), minlength=n_rows)
