"""Well-known methods that are settings of other solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xcray.kernels.row_norm import ROW_NORMS
from xcray.solvers.declarations import CompileCase, Tuning
from xcray.solvers.memoir.solver import MemoirSolver
from xcray.solvers.parameters import parameter
from xcray.solvers.pdsparse import PDSparseSolver
from xcray.solvers.ppdsparse import PPDSparseSolver


@dataclass(frozen=True)
class DiSMECSolver(PPDSparseSolver):
    """One-vs-rest l2-regularised squared hinge; weights below 0.01 are dropped after solving.

    Source: Babbar, Schoelkopf, "DiSMEC", WSDM 2017, section 2: its problem is PPDSparse's with lam
    = 0.
    """

    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PPDSparse
    tuning: ClassVar[Tuning | None] = None

    lam: float = parameter(0.0, "weight of the l1 norm", low=0.0)
    prune: float = parameter(
        0.01, "drop weights of at most this size after a label is solved", low=0.0
    )


@dataclass(frozen=True)
class L2SVMSolver(PPDSparseSolver):
    """One-vs-rest l2-regularised squared hinge with all weights.

    The problem of LIBLINEAR's one-vs-rest, which regularises the bias as a weight, solved with a
    certificate.
    """

    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PPDSparse
    tuning: ClassVar[Tuning | None] = None

    lam: float = parameter(0.0, "weight of the l1 norm", low=0.0)
    bias_penalty: float = parameter(
        1.0,
        "weight of the squared bias, as a multiple of tau; small: nearly free",
        low=1e-4,
        high=1.0,
    )


@dataclass(frozen=True)
class CrammerSingerSolver(PDSparseSolver):
    """Crammer-Singer multi-class SVM with a certificate: PD-Sparse without l1 regularisation.

    For rows with one label y, with z_i = W'x_i (no bias):

            min over W   1/2 |W|^2 + C sum_i max(0, max over n != y of 1 + z_in - z_iy)

    This is the problem of LIBLINEAR's `-s 4` without bias. Rows with several labels are treated as
    in PD-Sparse. Only labels that a search finds enter the dual of a row, so W stays sparse.

    Source: Crammer, Singer, "On the algorithmic implementation of multiclass kernel-based vector
    machines", JMLR 2001; see `PDSparseSolver` for the dual coordinate descent and its gap.
    """

    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PD-Sparse

    lam: float = parameter(0.0, "weight of the l1 norm", low=0.0)


@dataclass(frozen=True)
class PPDSparsePaperSolver(PPDSparseSolver):
    """PPDSparse with the problem of its paper: loss 1/2 z^2, the bias as a weight, lam = 0.01.

    Source: Yen et al., "PPDSparse", KDD 2017, section 5.2 and the settings of its Table 2; rows of
    length 1 as in section 6. Solved to the certificate of `ppdsparse`, which only changes the time.
    """

    baseline: ClassVar[bool] = True
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PPDSparse
    tuning: ClassVar[Tuning | None] = None

    C: float = parameter(0.5, "weight of a sample's loss", above=0.0)
    bias_penalty: float = parameter(
        1.0,
        "weight of the squared bias, as a multiple of tau; small: nearly free",
        low=1e-4,
        high=1.0,
    )
    row_norm: str = parameter(
        "l2",
        "normalisation of all rows, in training and in every request; l2: to length 1",
        choices=ROW_NORMS,
    )


@dataclass(frozen=True)
class MemoirPaperSolver(MemoirSolver):
    """MEMOIR as printed: rivals searched, margins tested and W changed sample by sample.

    Algorithms 1 and 2 with the settings of Table 4 (T = 25 is that of its smallest set) and the
    small-world graph that follows W. For penalty=l1 also set lam=1e-6. The rounds are not ended
    early, because the paper has chosen T in this way.

    Source: "MEMOIR: Multi-class Extreme Classification with Inexact Margin".
    """

    baseline: ClassVar[bool] = True
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of MEMOIR

    lam: float = parameter(1.0, "weight of the penalty", above=0.0)
    rounds: int = parameter(25, "number of rounds", low=1, high=1_000_000)
    oracle: str = parameter(
        "sw-graph",
        "search of the most violating class; sw-graph: by a graph of the classes that follows W; "
        "nmslib, lsh: by an index of W that is built for each group; random: a control",
        choices=("exact", "sw-graph", "nmslib", "lsh", "random"),
    )
    truncate: str = parameter(
        "touched",
        "l1: move all weights towards 0 after a round, or those of the classes in its draws, in "
        "proportion more (touched: eq. 13 of the paper)",
        choices=("all", "touched"),
    )


@dataclass(frozen=True)
class MemoirPaperFrozenSolver(MemoirPaperSolver):
    """MEMOIR with the rivals of a round searched before W changes, and margins tested at the step.

    The other reading of the same algorithm: the paper searches its graph in parallel, which needs
    one W for all samples of a batch.
    """

    group: int = parameter(
        0,
        "draws whose labels are searched before W changes; above 1, threads or workers share "
        "them; 0: all draws of a round",
        low=0,
        high=1000,
    )
    margin_at: str = parameter(
        "step",
        "test the margin of a draw with the search of its group, or just before its own step",
        choices=("search", "step"),
    )


@dataclass(frozen=True)
class MemoirScriptsSolver(MemoirSolver):
    """MEMOIR as in its authors' scripts: draws by label, steps of eta / batch, no margin test.

    Left out: their constant feature, which makes most rows choose the same label, and their
    prediction by cosine.
    """

    baseline: ClassVar[bool] = True
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of MEMOIR

    lam: float = parameter(1.0, "weight of the penalty", above=0.0)
    rounds: int = parameter(25, "number of rounds", low=1, high=1_000_000)
    group: int = parameter(
        1000,
        "draws whose labels are searched before W changes; above 1, threads or workers share "
        "them; 0: all draws of a round",
        low=0,
        high=1000,
    )
    step: str = parameter(
        "batch",
        "size of a sample's step: eta (sample) or eta / batch (batch)",
        choices=("sample", "batch"),
    )
    margin: float = parameter(
        1e30,
        "steps are taken for samples whose label leads by less than this",
        above=0.0,
        high=1e30,
    )
    draws: str = parameter(
        "labels",
        "draw samples uniformly, or labels uniformly and then a sample of the label",
        choices=("rows", "labels"),
    )
