"""Base class of the estimators: input checks and prediction from fitted weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Any, ClassVar, Self
from warnings import warn

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from xcray.arrays import (
    CSR,
    Float32,
    Float64,
    Pattern,
    TopK,
    csr_from,
    frozen,
    pattern,
    pattern_from,
)
from xcray.errors import InputError, excerpt, similar_or_all
from xcray.index.label_groups import LabelGroups
from xcray.index.search import SearchIndex
from xcray.kernels.row_norm import normalize_rows
from xcray.kernels.sparse import take_pattern_rows, take_rows
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.model.write import ModelContent, TrainingRecord, write_model
from xcray.parameters import require_type
from xcray.predict import ScoredLabel
from xcray.solvers import make_solver, solver_class
from xcray.solvers.declarations import StoppingRule
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.atomic import check_name, create_staging_directory, discard_directory
from xcray.system.cores import available_cores
from xcray.training.report.summary import label_table

CHUNK_ROWS = 4096  # rows scored at once


class LinearEstimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear scores of many labels, one row of weights and one bias per label, with exact search.

    The constructor is made from the parameters of the solver: names and defaults are those of its
    dataclass. n_jobs is the number of threads: None for one, -1 for all cores. The bits of
    the model do not depend on it.

    After `fit`: classes_ (K,), coef_ (K, D) CSR float32, intercept_ (K,) float32, records_ (K,)
    structured (the solver's record of each label), n_features_in_.
    """

    SOLVER: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Any]] = {}  # further parameters and their defaults
    UNUSED: ClassVar[frozenset[str]] = frozenset()  # solver parameters that `fit` has no use for
    NEEDS_POSITIVES: ClassVar[bool] = False  # whether some row must have a label
    LINK: ClassVar[str] = "identity"
    FITTED: ClassVar[str] = "coef_"  # an attribute that only fitted estimators have
    n_jobs: int | None
    row_norm_: str = "none"  # of fitted estimators that normalise rows, as in a model
    groups_: LabelGroups | None = None  # of fitted estimators whose labels share evidence

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the constructor of a class that names its solver."""
        if "SOLVER" in vars(cls):
            used = cls._solver_fields()
            defaults = {field.name: field.default for field in used}
            constructor = make_constructor({**defaults, **cls.OPTIONS, "n_jobs": None})
            constructor.__qualname__ = f"{cls.__name__}.__init__"  # in messages of Python
            cls.__init__ = constructor  # type: ignore[method-assign]
            lines = "".join(f"\n{each.name}: {each.metadata['help']}." for each in used)
            own = cleandoc(cls.__doc__ or "")  # before Python 3.13 it is indented like the source
            cls.__doc__ = f"{own}\n\nParameters of the solver:\n{lines}"
        super().__init_subclass__(**kwargs)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a model.

        X: (N, D) sparse or dense, numbers. y: (N, K) 0/1 label indicator, sparse or dense (rows
        without labels are left out by solvers that train all labels together), (N,) one class per
        row, or a list of N lists of label names. sample_weight: (N,) numbers, factors of the row
        losses; rows of weight 0 are left out. Raises ParameterError for a parameter out of range,
        ValueError if scikit-learn's checks reject X or y.
        """
        values = {field.name: getattr(self, field.name) for field in self._solver_fields()}
        solver: Any = make_solver(self.SOLVER, values)
        rows, labels, weights = drop_unweighted(*self._validate(X, y), sample_weight)
        if self.NEEDS_POSITIVES and not labels.nnz:
            raise ValueError("no row has a label: there is nothing to learn")
        reason = self._train(solver, rows, labels, weights)
        if reason is not None:
            warn(solver.stopping.warning(reason), ConvergenceWarning, stacklevel=2)
        return self

    @classmethod
    def _solver_fields(cls) -> list[Field[Any]]:
        """Return the parameters of the solver that the estimator has."""
        every = fields(solver_class(cls.SOLVER))
        return [field for field in every if field.name not in cls.UNUSED]

    def _train(self, solver: Any, X: CSR, Y: Pattern, weights: Float32 | None) -> str | None:
        """Set the fitted attributes; return why the training ended if not by its stopping rule."""
        raise NotImplementedError

    def predict_top_k(self, X: Any, k: int = 5) -> TopK:
        """Return the exact k best labels of each row of X (N, D), with scores.

        Labels are columns of y, or positions in `classes_`; `scored_labels` names them.
        """
        require_type("k", k, (int, np.integer), "a whole number")
        return self._top_k(self._rows(X), k)

    def scored_labels(self, top: TopK) -> list[list[ScoredLabel]]:
        """Return the results of `predict_top_k` by label name: (label, score), best first."""
        names = self.classes_.tolist()
        return [
            [ScoredLabel(names[k], s) for k, s in zip(*row, strict=True) if k >= 0]
            for row in zip(top.labels.tolist(), top.scores.tolist(), strict=True)
        ]

    def predict(self, X: Any) -> Any:
        """Return the best class of each row (N,), or the predicted label indicator (N, K).

        The indicator is returned if `fit` received one, and sparse if that was sparse. If `fit`
        received lists of names, a list of N lists of names is returned. See the class for which
        labels they contain.
        """
        rows = self._rows(X)
        if not self.multilabel_:
            return self.classes_[self._top_k(rows, 1).labels[:, 0]]
        out = [
            sp.csr_matrix(self._assigned_labels(scores), dtype=np.int64)
            for scores in self._scores(rows)
        ]
        indicator = (
            sp.vstack(out, "csr") if out else sp.csr_matrix((0, len(self.classes_)), dtype=np.int64)
        )
        if self.label_lists_:
            return [self.classes_[row.indices].tolist() for row in indicator]
        return indicator if self.sparse_labels_ else indicator.toarray()

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return all scores: (N, K) dense, or (N,) score differences for two classes.

        Needs 8 N K bytes, so it is meant for few labels.
        """
        rows = self._rows(X)
        scores = np.vstack([np.empty((0, len(self.classes_))), *self._scores(rows)])
        return (
            scores[:, 1] - scores[:, 0]
            if not self.multilabel_ and len(self.classes_) == 2
            else scores
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return P@1, the share of rows whose best label is true.

        For one class per row this is the accuracy.
        """
        best = self.predict_top_k(X, 1).labels[:, 0]
        if self.label_lists_:
            hits = np.array([self.classes_[i] in set(own) for i, own in zip(best, y, strict=True)])
        elif self.multilabel_:
            hits = np.asarray(sp.csr_matrix(y)[np.arange(len(best)), best]).ravel() != 0
        else:
            hits = self.classes_[best] == np.asarray(y)
        return float(np.average(hits, weights=sample_weight))

    def save(self, path: str | Path) -> Path:
        """Write the fitted model as a model directory, for `load`, `xcray predict` and services.

        Labels are named by `classes_`, features by `feature_names_in_` or their numbers. The label
        table has what `records_` has: training rows and gap of each label. Raises Conflict if
        `path` exists.
        """
        require_type("path", path, (str, Path), "the path of a directory to write")
        check_is_fitted(self, self.FITTED)
        saved = {
            "multilabel": self.multilabel_,
            "sparse_labels": self.sparse_labels_,
            "label_lists": self.label_lists_,
            "classes": self.classes_.dtype.str,
        }
        names = getattr(self, "feature_names_in_", range(self.n_features_in_))
        write_model(
            path,
            self._content(
                [str(name) for name in self.classes_.tolist()], [str(name) for name in names]
            ),
            TrainingRecord(
                solver=self.SOLVER,
                params={
                    name: value
                    for name, value in self.get_params().items()
                    if name != "n_jobs" and (name, value) != ("row_norm", "none")
                },
                dataset_hash="",
                report={"estimator": saved},
                label_table=self._label_table(),
            ),
        )
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, *, n_jobs: int | None = None) -> Self:
        """Return the estimator that `save` wrote; it predicts, and has no `records_`.

        Raises NotFound, Corrupt, and InputError if `save` of this class did not write it.
        """
        model = Model.open(path)
        saved = model.manifest["report"].get("estimator")
        if saved is None or model.manifest["solver"] != cls.SOLVER:
            raise InputError(
                f"{Path(path).name} was not written by {cls.__name__}.save; use Predictor(path)"
            )
        loaded = cls(**model.manifest["params"], n_jobs=n_jobs)
        loaded.classes_ = np.array(model.labels).astype(saved["classes"])
        loaded.multilabel_, loaded.label_lists_ = saved["multilabel"], saved["label_lists"]
        loaded.sparse_labels_ = saved["sparse_labels"]
        loaded.n_features_in_ = model.n_features
        if model.features != [str(i) for i in range(model.n_features)]:
            loaded.feature_names_in_ = np.array(model.features, object)
        loaded._restore(model)
        return loaded

    def _label_table(self) -> pa.Table | None:
        """Return what `fit` recorded of the labels; None for a loaded or a staged estimator."""
        if not hasattr(self, "records_"):
            return None
        solver = make_solver(
            self.SOLVER, {each.name: getattr(self, each.name) for each in self._solver_fields()}
        )
        numbers = frozen(np.arange(len(self.classes_)), np.int32)
        block = SolvedLabels(
            numbers, csr_from(self.coef_), self.intercept_.astype(np.float64), self.records_
        )
        return label_table(block, solver).drop_columns(["seconds", "worker"])

    def _content(self, labels: list[str], features: list[str]) -> ModelContent:
        """Return what `save` writes, with these names."""
        return ModelContent(
            W=csr_from(self.coef_),
            b=self.intercept_,
            label_names=labels,
            feature_names=features,
            link=self.LINK,
            row_norm=self.row_norm_,
            groups=self.groups_,
        )

    def _restore(self, model: Model) -> None:
        """Take the weights of a model."""
        self.coef_, self.intercept_ = model.W.to_scipy(), np.array(model.b)
        self.row_norm_, self.groups_ = model.row_norm, model.groups
        self._index = self._build_index()

    def publish(self, registry: str | Path, name: str) -> int:
        """Save the fitted model as the next version of `name` in a registry; return its number.

        registry: folder of models, `models` in the home of a service. Raises ParameterError for an
        invalid name.
        """
        target = Registry(registry)
        staging = create_staging_directory(target.root / check_name(name, "model name"))
        try:
            return target.publish(name, self.save(staging / "model"))
        finally:
            discard_directory(staging)

    def __sklearn_tags__(self) -> Any:
        """Return the tags: sparse X, one or several labels per row."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = False
        return tags

    def __getstate__(self) -> Any:
        """Return the state without the index, which holds scratch memory of threads."""
        return {name: value for name, value in super().__getstate__().items() if name != "_index"}

    def __setstate__(self, state: Any) -> None:
        """Restore the state, and rebuild the index."""
        super().__setstate__(state)
        if "coef_" in state:
            self._index = self._build_index()

    def _set_model(self, block: SolvedLabels) -> None:
        """Set the fitted attributes from the result of a solver."""
        self.coef_, self.intercept_ = block.W.to_scipy(), block.bias.astype(np.float32)
        self.records_ = block.records
        self._index = self._build_index()

    def _build_index(self) -> SearchIndex:
        """Return the search over the fitted weights."""
        return SearchIndex.build(csr_from(self.coef_), self.intercept_, groups=self.groups_)

    def _assigned_labels(self, scores: Float64) -> Any:
        """Return which labels rows with scores (n, K) get: (n, K) bool; here those above 0."""
        return scores > 0.0

    def _validate(self, X: Any, Y: Any) -> tuple[CSR, Pattern]:
        """Return X and Y as xcray arrays; set classes_, multilabel_ and n_features_in_."""
        if getattr(Y, "ndim", 0) == 1 and getattr(Y, "dtype", None) == np.dtype(object):
            # of a data frame, whose rows are arrays if Parquet was read
            column = [own.tolist() if isinstance(own, np.ndarray) else own for own in Y]
            Y = column if column and isinstance(column[0], list | tuple | set) else Y
        self.label_lists_ = is_label_lists(Y)
        if self.label_lists_:
            X = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
            return csr_from(X), self._read_label_lists(Y, X.shape[0])
        # of a data frame, or table of Arrow, with a column of 0 and 1 per label
        names = getattr(Y, "column_names", getattr(Y, "columns", None))
        self.sparse_labels_ = sp.issparse(Y)
        if not self.sparse_labels_ and Y is not None:
            Y = np.asarray(Y)
        if self.sparse_labels_ or (np.ndim(Y) == 2 and np.shape(Y)[1] != 1):
            self.multilabel_ = True
            X = validate_data(self, X, accept_sparse="csr", dtype=np.float32)
            labels = read_label_matrix(Y)
            if labels.n_rows != X.shape[0]:
                raise ValueError(
                    f"X has {X.shape[0]} rows, Y has {labels.n_rows}; "
                    "give one row of labels for each row of X"
                )
            self.classes_ = (
                np.arange(labels.n_cols) if names is None else np.array([str(n) for n in names])
            )
            return csr_from(X), labels
        self.multilabel_ = False
        X, y = validate_data(self, X, Y, accept_sparse="csr", dtype=np.float32)
        check_classification_targets(y)
        if type_of_target(y) not in ("binary", "multiclass"):
            raise ValueError(
                f"y is {type_of_target(y)}; give one class per row, or a 0/1 matrix of labels"
            )
        self.classes_, number = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only ({self.classes_[0]!r}); a classifier needs at least two"
            )
        return csr_from(X), pattern(np.arange(len(number) + 1), number, len(self.classes_))

    def _read_label_lists(self, names: Sequence[Sequence[str]], n_rows: int) -> Pattern:
        """Return lists of label names as a pattern; set classes_ and multilabel_."""
        if len(names) != n_rows:
            raise ValueError(
                f"X has {n_rows} rows, Y has {len(names)}; "
                "give one list of labels for each row of X"
            )
        self.multilabel_, self.sparse_labels_ = True, False
        lists = [sorted(set(own)) for own in names]
        self.classes_ = np.unique([name for own in lists for name in own])
        if not len(self.classes_):
            raise ValueError("no row has a label; give at least one row a label")
        indptr = np.cumsum([0, *(len(own) for own in lists)])
        flat = np.array([name for own in lists for name in own])
        return pattern(indptr, np.searchsorted(self.classes_, flat), len(self.classes_))

    def _rows(self, X: Any) -> CSR:
        """Return X checked against the fitted features, and normalised like the training rows."""
        check_is_fitted(self, self.FITTED)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=False)
        return normalize_rows(csr_from(X), self.row_norm_)

    def _top_k(self, rows: CSR, k: int) -> TopK:
        """Return the k best labels of rows (n, D)."""
        return self._index.query(rows, k, threads=self._workers()).top

    def _scores(self, rows: CSR) -> Iterator[Float64]:
        """Yield dense scores, chunk by chunk."""
        X, W = rows.to_scipy().astype(np.float64), self.coef_.T.astype(np.float64)
        for start in range(0, rows.n_rows, CHUNK_ROWS):
            chunk = X[start : start + CHUNK_ROWS]
            scores = (chunk @ W).toarray() + self.intercept_.astype(np.float64)
            yield scores if self.groups_ is None else scores + self.groups_.scores(chunk)

    def _workers(self) -> int:
        """Return the number of threads, by scikit-learn's convention."""
        if self.n_jobs is None:
            return 1
        return max(1, self.n_jobs if self.n_jobs > 0 else available_cores() + 1 + self.n_jobs)


def make_constructor(defaults: Mapping[str, Any]) -> Callable[..., None]:
    """Return an `__init__` that stores these keyword arguments; `fit` checks them.

    scikit-learn reads the names of the parameters from its signature.
    """

    def __init__(self: Any, **values: Any) -> None:
        if unknown := [name for name in values if name not in defaults]:
            raise TypeError(
                f"{type(self).__name__} has no parameter {unknown[0]!r}"
                f"{similar_or_all(unknown[0], defaults)}"
            )
        vars(self).update({**defaults, **values})

    own = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()
    ]
    __init__.__signature__ = Signature([own, *keywords])  # type: ignore[attr-defined]
    __init__.__doc__ = "Store the parameters; `fit` checks them."
    return __init__


def unmet(stopping: StoppingRule, reason: str) -> str | None:
    """Return why a training ended, or None if its rule was met."""
    return None if stopping.is_met(reason) else reason


def read_label_matrix(Y: Any) -> Pattern:
    """Return the labels in a sparse matrix or dense array of 0 and 1.

    In a dense array of -1 and 1, -1 stands for 0. Raises InputError for any other value: whether it
    means a label is unclear.
    """
    is_sparse = sp.issparse(Y)
    values = Y.tocsr().data if is_sparse else np.asarray(Y)
    known = (values == 0) | (values == 1)
    if not known.all():
        if is_sparse or not ((values == 1) | (values == -1)).all():
            value = values[~known].flat[0]
            raise InputError(
                f"a matrix of labels has the value {value}: give 1 where a row has a label, and 0 "
                "elsewhere, like Y > 0",
                code="LABEL_VALUE",
            )
        Y = values == 1
    return pattern_from(Y)


def is_label_lists(Y: Any) -> bool:
    """Return whether Y is a list of lists, tuples or sets of label names or whole numbers.

    Lists of 0 and 1 that have the same length are an indicator matrix. Raises ValueError if only
    some rows are lists, or if names and numbers are mixed.
    """
    if not isinstance(Y, (list, tuple)) or not Y:
        return False
    other = [i for i, own in enumerate(Y) if not isinstance(own, (list, tuple, set, frozenset))]
    if 0 < len(other) < len(Y):
        raise ValueError(
            f"Y[{other[0]}] is {excerpt(repr(Y[other[0]]))}: "
            "give a list of label names for each row"
        )
    if other:
        return False
    kinds = {str if isinstance(name, str) else type(name) for own in Y for name in own}
    if kinds <= {str}:
        return True
    if str in kinds:
        raise ValueError("Y has names and numbers: give lists of names, or lists of numbers")
    is_whole = all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds)
    is_matrix = len({len(own) for own in Y}) == 1 and all(
        name in (0, 1) for own in Y for name in own
    )
    return is_whole and not is_matrix


def drop_unweighted(X: CSR, Y: Pattern, sample_weight: Any) -> tuple[CSR, Pattern, Float32 | None]:
    """Return the rows of weight above 0, with their weights; all rows and None without weights."""
    if sample_weight is None:
        return X, Y, None
    weights = _check_sample_weight(
        sample_weight, X.to_scipy(), dtype=np.float32, ensure_non_negative=True
    )
    rows = np.flatnonzero(weights)
    return take_rows(X, rows), take_pattern_rows(Y, rows), weights[rows]
