"""What solvers declare about themselves: records, stopping rule, resource needs, compile cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xcray.arrays import CSR, Float32, Float64, Int64

# from scores to probabilities: margins have none, softmax models have their own, and scores of
# the link "probability" are probabilities
Link: TypeAlias = Literal["identity", "softmax", "probability"]
LINKS: Final[tuple[Link, ...]] = ("identity", "softmax", "probability")
# what a training publishes: one sparse matrix of weights and a bias per label, or stages
Exports: TypeAlias = Literal["weights", "stages"]
# Share of the weights that remains if small ones are dropped. A guess.
UNPRUNED_SHARE: Final = 0.25
# Core seconds per entry of X and label in a product with a matrix that has a column per label.
PRODUCT_SECONDS: Final = 1.0e-9
DENSE_PRODUCT_SECONDS: Final = 1.5e-10  # the same for dense X


class RecordField(NamedTuple):
    """A field of the per-label records: its numpy type and meaning.

    column: its name in the label table of the report; empty if the table does not show it.
    """

    name: str
    dtype: Any
    help: str
    column: str = ""


# fields of every schema
COMMON_FIELDS: Final = (
    RecordField("label", np.int32, "number of the label"),
    RecordField("positives", np.int32, "training rows of the label", "positives"),
    RecordField("rounds", np.int32, "rounds until the end; -1 if not trained", "rounds"),
)
# of solvers that drop small weights
WEIGHT_FIELDS: Final = (
    RecordField("nnz", np.int32, "weights that are kept", "nnz"),
    RecordField("pruned", np.int32, "weights that were dropped for their size", "pruned"),
)


class RecordSchema:
    """Schema of per-label records: the COMMON_FIELDS, then `fields`.

    dtype: of the records, an aligned numpy structure.

    Example:
        >>> RecordSchema(RecordField("steps", np.int32, "Newton steps", "steps")).dtype.names
        ('label', 'positives', 'rounds', 'steps')
    """

    def __init__(self, *fields: RecordField) -> None:
        self.fields = (*COMMON_FIELDS, *fields)
        self.dtype = np.dtype([(each.name, each.dtype) for each in self.fields], align=True)

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns of the label table: column -> field, in order."""
        return {each.column: each.name for each in self.fields if each.column}


class StoppingRule(NamedTuple):
    """When a training ends.

    kind: "certificate": of the distance to the optimum; "tolerance": of the progress or the
    gradient; "held_out": of the held-out loss. threshold: of that quantity; 0 asks for no
    tolerance. limit: maximum number of rounds (or passes, iterations, epochs). reached: why it
    ended, if the rule was met, for the report. names: of the parameters that are the threshold and
    the limit. early: why it ended, if another rule that the user asked for was met.
    """

    kind: Literal["certificate", "tolerance", "held_out"]
    threshold: float
    limit: int
    reached: str
    names: tuple[str, str] = ("tolerance", "max_rounds")
    early: str = ""

    def is_met(self, reason: str) -> bool:
        """Return whether a training that ended for `reason` did what was asked for."""
        return self.threshold == 0.0 or reason in (self.reached, self.early)

    def warning(self, reason: str) -> str:
        """Return the warning for users about a training that ended for another `reason`."""
        threshold, limit = self.names
        return (
            f"the training ended without its tolerance: {reason}; the weights are not those of the "
            f"optimum: raise {limit} or {threshold}, or scale features with very large values"
        )


class ProblemShape(NamedTuple):
    """Size of a training, as input of a solver's resource needs.

    rows, features (with those that the solver adds), labels, entries: N, D', K and the entries of
    X. used_features: features that occur in some row. n_bytes: of X and targets in all shards.
    dense: whether rows are stored dense. index_bytes: of the numbers of all rows and labels, for
    workers that map X. feature_counts: (D,) rows with each feature of the data. sparse_weights:
    expected weights of a model whose labels only have weights on features of their rows.
    """

    rows: int
    features: int
    labels: int
    entries: int
    used_features: int
    n_bytes: int
    dense: bool
    index_bytes: int
    feature_counts: Int64
    sparse_weights: int

    @property
    def product_seconds(self) -> float:
        """Return the seconds of one core for a product of all rows with all weights."""
        seconds = DENSE_PRODUCT_SECONDS if self.dense else PRODUCT_SECONDS
        return self.entries * self.labels * seconds

    def expected_weights(self, prune: float, keep: int = 0) -> int:
        """Return the weights of a model, of which those of at most `prune` are dropped.

        keep: maximum number per label, 0 for all.
        """
        used = self.used_features
        per_label = min(used * (UNPRUNED_SHARE if prune > 0.0 else 1.0), keep or used)
        return int(per_label * self.labels)


class RoundCost(NamedTuple):
    """Measured cost of a training by rounds over all rows and labels.

    rounds: typical number. products: of X with a matrix that has a column per label, per round.
    Core seconds per round: score_seconds per row and label, weight_seconds per weight, and
    overhead_seconds for calls and replies.
    """

    rounds: int
    products: float
    score_seconds: float
    weight_seconds: float
    overhead_seconds: float

    def core_seconds(self, shape: ProblemShape) -> float:
        """Return the core seconds of a training."""
        return self.rounds * (
            self.products * shape.product_seconds
            + self.score_seconds * shape.rows * shape.labels
            + self.weight_seconds * shape.features * shape.labels
            + self.overhead_seconds
        )


class TaskNeeds(NamedTuple):
    """Memory of a worker of an independent solver, in addition to its loaded state.

    n_bytes: for any labels. bytes_per_weight: per weight of the whole model. process_bytes:
    once per process, shared by its threads.
    """

    n_bytes: int = 0
    bytes_per_weight: int = 0
    process_bytes: int = 0


# copies of all weights in Ray's object store: weights and gradients, of this round and the last
STORE_COPIES: Final = 4


class ResourceNeeds(NamedTuple):
    """Resource needs of a rotation or group training.

    Bytes: driver, in addition to what every training needs there; worker, per worker; store, of all
    objects in Ray's object store; checkpoints, on disk. weights: of the model. core_seconds: of the
    training, of which `sweeps` sweeps over all rows and weights take `sweep_seconds` each; sweeps
    is 0 if they cannot be timed.
    """

    driver: int
    worker: int
    store: int
    checkpoints: int
    weights: int
    core_seconds: float
    sweeps: float = 0.0
    sweep_seconds: float = 0.0


class Tuning(NamedTuple):
    """Parameters that a search on held-out rows varies, see `xcray.training.selection`.

    values: of each of them; from its default, a parameter first moves to the right. while_compared:
    parameters that make a training faster, and good enough to compare settings. together: values
    that gain together more often than each alone, tried first.
    """

    values: Mapping[str, tuple[Any, ...]]
    while_compared: Mapping[str, Any]
    together: Mapping[str, Any] = {}


class CompileCase(NamedTuple):
    """A small training that compiles kernels ahead of time, see `xcray compile-kernels`.

    data: "sparse" (several labels per row), "single" (one label per row) or "dense". leaf_rows: of
    the metric forest on disk from which rows are read; 0 for rows in memory.
    """

    params: Mapping[str, Any] = {}
    data: Literal["sparse", "single", "dense"] = "sparse"
    leaf_rows: int = 0


class EarlierLabels(NamedTuple):
    """Labels that were solved before the rows changed: the first labels of the changed data.

    W: (K', D); b: (K',) float32. primal, dual: (K',) float64, and positives: (K',) int64, of their
    records. n_rows: of the rows that they were solved on.
    """

    W: CSR
    b: Float32
    primal: Float64
    dual: Float64
    positives: Int64
    n_rows: int


class RowChange(NamedTuple):
    """Rows from `first_added` on are new; earlier ones keep their order.

    duals: (K', N), dual variables of the earlier labels, without those of removed rows and of rows
    whose label changed; None if they are unknown. is_reduced: whether any were left out. is_solved:
    (K',) bool, labels that are solved again in any case and need no bound.
    """

    first_added: int
    duals: CSR | None
    is_reduced: bool
    is_solved: NDArray[np.bool_]


class Bounds(NamedTuple):
    """Objectives of labels: primal of the weights and dual bound; null, see `certificate`.

    All (K',) float64. dual is -infinity where it is unknown.
    """

    primal: Float64
    dual: Float64
    null: Float64
