"""Data, settings, working memory and output of the PPDSparse kernel, as named tuples for numba."""

from typing import Any, NamedTuple

import numpy as np

from xcray.arrays import CSR, Float32, Float64, Int32, Int64, Pattern
from xcray.kernels.training.hinge import Objective

START, SWEEP, SCORE, EXPORT = 0, 1, 2, 3  # phases of a class

STATE = np.dtype(
    [
        ("label", np.int32),
        ("phase", np.int32),
        ("rounds", np.int32),
        ("sweeps", np.int32),
        ("sweeps_left", np.int32),
        ("positives", np.int32),
        ("n_active", np.int32),
        ("n_touched", np.int32),
        ("n_priced", np.int32),  # touched features whose change was evaluated
        ("n_chosen", np.int32),  # changes that the current scoring pass applies
        ("n_entering", np.int32),  # samples that become active, not yet with a row
        ("n_rows", np.int32),
        ("n_entries", np.int64),  # used part of the array `entries`
        ("position", np.int32),  # within the current sweep or scoring pass
        ("nnz", np.int32),
        ("support", np.int32),
        ("violating", np.int32),  # samples with a positive loss at the primal point
        ("counter", np.uint64),  # of the class's random stream
        ("work", np.int64),  # entries of X visited
        ("swept", np.int64),  # of them, by the sweeps of this round
        ("factor", np.float64),  # of the weights of positives
        ("active_gap", np.float64),  # of the active samples, each at its visit in this sweep
        ("gap_before", np.float64),  # that of the sweep before
        ("strict", np.float64),
        ("budget", np.float64),  # maximum cost of deferred changes to the primal
        ("waiting", np.float64),  # their estimated cost
        ("vb", np.float64),  # tau_bias b(alpha)
        ("vb_start", np.float64),  # vb at the start of the sweep, and its change before
        ("vb_change", np.float64),
        ("n_start", np.int64),  # active samples at the start of the sweep; 0: no momentum
        ("center", np.float64),  # bias that sweeps stay near, see `bias_of`
        ("bias", np.float64),
        ("primal", np.float64),
        ("dual", np.float64),
        ("gap", np.float64),
        ("null", np.float64),  # the primal at w = 0 with the best bias
        ("loss", np.float64),  # the sum of losses at the primal point
    ],
    align=True,
)

# An active sample. Sweeps visit rows in random order, so all numbers of a row are in one place, and
# so are its entries.
ROW = np.dtype(
    [
        ("begin", np.int64),  # of its entries in `entries`, see `rows`
        ("sample", np.int32),
        ("length", np.int32),  # number of its entries
        ("sign", np.float64),  # 1 for positives, -1 for negatives
        ("cost", np.float64),  # c_i
        ("inv", np.float64),  # inv_i and upper_i of the dual
        ("upper", np.float64),
        ("rate", np.float64),  # 1 / curvature of the dual along alpha_i
        ("alpha", np.float64),
    ],
    align=True,
)


class PPDSparseProblem(NamedTuple):
    """Data: X by row and by column, and the samples of each label (K, N).

    row_sq: (N,) squared row norms; column_sq: (D,) sums of weighted squares of the columns;
    float64. weights: (N,) float32 above 0, or empty if all are 1; factors: (K,) float64, factors of
    the weights of a label's positives, or empty; total: the sum of weights.
    """

    X: CSR
    XT: CSR
    row_sq: Float64
    column_sq: Float64
    YT: Pattern
    weights: Float32
    factors: Float64
    total: float


class PPDSparseSettings(NamedTuple):
    """Objective and hyper-parameters of the search, as scalars."""

    objective: Objective
    eps: float
    max_rounds: int
    max_sweeps: int
    growth: int
    seed: int
    keep_duals: bool


class PPDSparseScratch(NamedTuple):
    """Working memory of one worker, O(N + D) and the entries of the largest active set.

    Marks are zero between classes. A class has its own numbering of features and of samples, in
    order of first touch, so that frequently read arrays are small and dense: feature `touched[t]`
    has number t. Memory of long arrays is committed as it is written. Scores are float32 if eps
    allows it, else float64.
    """

    number: Int32  # (D,) number of a touched feature plus one; 0: not touched
    touched: Int32  # (D + 1,) the touched features
    v: Float64  # (D + 1,) by number
    weight: Float32  # (D,) by number: weight contained in `scores`, which is exported
    length: Float32  # (D,) by number: cost of its posting list in entries; 0: unknown
    chosen: Int32  # (D,) numbers of the features whose change is applied
    power: Int32  # (D,) bins of their gains per entry, see `choose_changes`
    curvature: Float32  # (D,) by number: C times the sum of squares of its column
    scores: Any  # (N,) weight.x_i, without the bias
    maxima: Any  # (ceil(N / CHUNK),) maximum scores of chunks of samples, see `hinge`
    v_start: Float64  # (D + 1,) by number: v at the start of a sweep, see `momentum`
    v_change: Float64  # (D + 1,) by number: its change between the last two starts
    is_active: np.ndarray  # (N,) uint8
    row_of: Int32  # (N,) row of a sample plus one; 0: it was never active
    entering: Int32  # (N + 1,) samples that become active
    rows: np.ndarray  # (N,) of ROW: samples that are or were active
    active: Int32  # (N,) the active rows
    alpha_start: Float64  # (N,) by row: alpha at the start of a sweep
    alpha_change: Float64  # (N,) by row: its change between the last two starts
    # (2 nnz,) numbers of the features of a row, then the bits of its values; row after row
    entries: Int32
    values: Float32  # the same memory


class BatchOutput(NamedTuple):
    """Output of finished classes: weights by feature, dual variables by sample."""

    ends: Int64  # (classes,) end of each class's weights in `features` and `weights`
    features: Int32
    weights: Float32
    dual_ends: Int64  # (classes,) the same for `samples` and `duals`
    samples: Int32
    duals: Float32
    records: np.ndarray  # (classes,) of STATE
