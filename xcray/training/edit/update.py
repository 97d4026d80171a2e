"""Update a model to changed rows: only labels whose certificate the change breaks are solved again.

The data set is made by `xcray.data.delta` from that of the model. One pass over the added rows
gives a bound of the gap of every label on the changed rows as a whole (`solvers.recertify`). A
label whose gap is still at most eps keeps its weights and its bias, byte for byte. Others are
solved, from the dual variables that the model has, if it has them (`keep_duals`). A label that had
used a removed row, that is, with a dual variable above 0 for it, is solved in any case.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from xcray.arrays import CSR, Int64, csr, frozen
from xcray.data.dataset import Dataset, open_verified
from xcray.data.delta.rows import Lineage, read_lineage
from xcray.errors import Conflict, InputError, ParameterError
from xcray.model.model import Model
from xcray.solvers import make_solver
from xcray.solvers.contract import UpdatableSolver
from xcray.solvers.declarations import Bounds, EarlierLabels, RowChange
from xcray.training.capacity.preflight import worker_count
from xcray.training.edit.apply import (
    MAX_LISTED,
    EditOptions,
    LabelChange,
    Update,
    apply_change,
    check_features,
    check_output_path,
    check_solver,
)
from xcray.training.run import TrainResult
from xcray.training.spec import TrainSpec


def update_model(
    model: str | Path,
    dataset: str | Path,
    out: str | Path,
    options: EditOptions | None = None,
    *,
    evaluate: bool = False,
) -> TrainResult:
    """Publish the model at `out` with every label certified on the rows of a changed data set.

    dataset: made by `xcray.data.delta` from the data set that the model was trained on. evaluate:
    also measure the new model on the held-out rows, which takes longer than a small update. The
    result is the same for any pool and after any kill and resume. Raises ParameterError if the
    solver has no dual bound or the model has label groups, InputError if the data set is not a
    changed one, Conflict if it is one of another data set than the model's or `out` exists; and the
    errors of `xcray.training.train`.
    """
    check_output_path(out)
    old, data = Model.open(model), open_verified(dataset)
    lineage = check_update(old, data)
    options = options or EditOptions()
    change = plan_update(old, data, lineage, options)
    return apply_change(old, data, out, change._replace(evaluate=evaluate), options)


def check_update(old: Model, data: Dataset) -> Lineage:
    """Return where the rows of a changed data set come from; errors as of `update_model`."""
    old.require_linear()
    if old.groups is not None:
        raise ParameterError("a model with label groups cannot be updated: train it again")
    check_solver(old)
    make_solver(old.manifest["solver"], old.manifest["params"]).check_updatable()
    check_features(old, data)
    return _check_lineage(old, data)


def plan_update(old: Model, data: Dataset, lineage: Lineage, options: EditOptions) -> LabelChange:
    """Decide which labels are solved: the bounds of all others hold on the changed rows."""
    solver = cast("UpdatableSolver", make_solver(old.manifest["solver"], old.manifest["params"]))
    train, K = data.train, old.n_labels
    state = solver.load(train.X, train.XT, train.YT, train.weights)
    before = _read_records(old)
    duals = None if old.duals is None else carry_duals(old.duals, lineage)
    used = np.zeros(K, bool) if duals is None else duals.used
    positives = data.label_counts[:K]
    is_solved = used | _lost_rows(data, lineage, before["positives"]) | ~before["certified"]
    removed = lineage.base_rows - lineage.n_kept
    spec = TrainSpec(str(data.path), pool=options.pool, workers=options.workers)
    bounds = solver.bound_changed(
        state,
        EarlierLabels(
            old.W,
            old.b,
            before["primal"],
            before["dual"],
            frozen(before["positives"], np.int64),
            lineage.base_rows,
        ),
        RowChange(lineage.n_kept, None if duals is None else duals.values, removed > 0, is_solved),
        worker_count(spec),
    )
    gap = np.maximum(0.0, bounds.primal - bounds.dual)
    has_rows = (positives > 0) | (before["positives"] > 0)
    is_solved |= has_rows & (gap > solver.stopping.threshold * bounds.null)
    labels = np.arange(data.n_labels)
    is_trained = np.concatenate([is_solved, np.ones(data.n_labels - K, bool)])
    names = data.label_names.to_pylist()
    report = {
        "rows": dict(data.manifest["source"]["delta"]),
        "untouched": int((~is_solved).sum()),
        "solved": int(is_solved.sum()),
        "new": data.n_labels - K,
        "without_rows": int(((positives == 0) & (before["positives"] > 0)).sum()),
        "used_removed_rows": int(used.sum()),
        "labels_that_used_removed_rows": [names[k] for k in np.flatnonzero(used)[:MAX_LISTED]],
    }
    start = None if duals is None else _with_rows(duals.values, data.n_labels)
    table = _with_bounds(old, bounds, gap, positives)
    details = {name: each for name, each in report.items() if isinstance(each, int)}
    return LabelChange(
        "update",
        names,
        np.where(is_trained, -1, labels),
        np.where(is_trained, labels, -1),
        details,
        update=Update(state, start, table, {"update": report}),
    )


class CarriedDuals(NamedTuple):
    """Dual variables on changed rows; used: (K,) bool, labels with one above 0 of a removed row."""

    values: CSR
    used: np.ndarray


def carry_duals(duals: CSR, lineage: Lineage) -> CarriedDuals:
    """Return the dual variables (K, N) on the changed rows.

    Those of removed rows, and of rows whose membership of the label changed, are left out.
    """
    n_rows = len(lineage.origin)
    if lineage.n_kept == lineage.base_rows and not len(lineage.relabelled):
        return CarriedDuals(duals._replace(n_cols=n_rows), np.zeros(duals.n_rows, bool))
    place = np.full(lineage.base_rows, -1, np.int64)
    place[lineage.origin[: lineage.n_kept]] = np.arange(lineage.n_kept)
    label_of = np.repeat(np.arange(duals.n_rows), np.diff(duals.indptr))
    rows = place[duals.indices]
    is_removed = (rows < 0) & (duals.data > 0.0)
    used = np.bincount(label_of[is_removed], minlength=duals.n_rows) > 0
    stays = rows >= 0
    if len(lineage.relabelled):
        row, label = lineage.relabelled.T
        is_relabelled = np.zeros(n_rows + 1, bool)  # the last one stands for removed rows
        is_relabelled[row] = True
        near = np.flatnonzero(is_relabelled[rows])
        pairs = label_of[near] * n_rows + rows[near]
        stays[near] &= ~np.isin(pairs, label * n_rows + row)
    indptr = np.concatenate([[0], np.cumsum(stays)])[duals.indptr]
    return CarriedDuals(csr(indptr, rows[stays], duals.data[stays], n_rows), used)


def _check_lineage(old: Model, data: Dataset) -> Lineage:
    """Return the lineage of the data set. Raises InputError, Conflict."""
    lineage = read_lineage(data)
    if lineage is None:
        raise InputError(
            f"data set {data.name} is not a changed one: make it from the data set of the model "
            "with `xcray data delta` or `base` of POST /v1/datasets, or train on it"
        )
    if lineage.base != old.manifest["dataset_hash"]:
        raise Conflict(
            f"data set {data.name} was made from another data set than that of the model: "
            "make a change of the model's own data set"
        )
    if old.label_names != data.label_names[: lineage.base_labels]:
        raise Conflict("the labels of the model are not those of its data set: train it again")
    return lineage


def _read_records(old: Model) -> dict[str, Any]:
    """Return the columns of the label table that the bounds need. Raises InputError."""
    names = ("primal", "dual", "positives", "certified")
    table = old.label_table
    if table is None or any(
        name not in table.column_names or table.column(name).null_count for name in names
    ):
        raise InputError("the model has no certificates of its labels: train it again")
    return {name: table.column(name).to_numpy() for name in names}


def _lost_rows(data: Dataset, lineage: Lineage, positives: Int64) -> np.ndarray:
    """Return which of the old labels lost a positive, or got or lost one by relabelling."""
    K, Y = len(positives), data.train.Y
    added = np.bincount(Y.indices[Y.indptr[lineage.n_kept] :], minlength=data.n_labels)[:K]
    changed: np.ndarray = data.label_counts[:K] - added != positives
    labels = lineage.relabelled[:, 1]
    changed[labels[labels < K]] = True
    return changed


def _with_bounds(old: Model, bounds: Bounds, gap: Any, positives: Any) -> pa.Table:
    """Return the label table of the old model with its certificates on the changed rows."""
    table = old.label_table
    assert table is not None
    values = {**bounds._asdict(), "gap": gap, "positives": positives}
    for name, column in values.items():
        at = table.column_names.index(name)
        kind = table.schema.field(name).type
        table = table.set_column(at, name, pa.array(column).cast(kind))
    return table


def _with_rows(matrix: CSR, n_rows: int) -> CSR:
    """Return the matrix with empty rows at its end."""
    more = np.full(n_rows - matrix.n_rows, matrix.indptr[-1])
    return csr(np.concatenate([matrix.indptr, more]), matrix.indices, matrix.data, matrix.n_cols)
