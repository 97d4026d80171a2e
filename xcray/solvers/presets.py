"""Well-known methods that are settings of other solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xcray.solvers.declarations import CompileCase, Tuning
from xcray.solvers.memoir.solver import MemoirSolver
from xcray.solvers.parameters import with_default
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

    lam: float = with_default(PPDSparseSolver, "lam", 0.0)
    prune: float = with_default(PPDSparseSolver, "prune", 0.01)


@dataclass(frozen=True)
class L2SVMSolver(PPDSparseSolver):
    """One-vs-rest l2-regularised squared hinge with all weights.

    The problem of LIBLINEAR's one-vs-rest, which regularises the bias as a weight, solved with a
    certificate.
    """

    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PPDSparse
    tuning: ClassVar[Tuning | None] = None

    lam: float = with_default(PPDSparseSolver, "lam", 0.0)
    bias_penalty: float = with_default(PPDSparseSolver, "bias_penalty", 1.0)


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

    lam: float = with_default(PDSparseSolver, "lam", 0.0)


@dataclass(frozen=True)
class PPDSparsePaperSolver(PPDSparseSolver):
    """PPDSparse with the problem of its paper: loss 1/2 z^2, the bias as a weight, lam = 0.01.

    Source: Yen et al., "PPDSparse", KDD 2017, section 5.2 and the settings of its Table 2; rows of
    length 1 as in section 6. Solved to the certificate of `ppdsparse`, which only changes the time.
    """

    baseline: ClassVar[bool] = True
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PPDSparse
    tuning: ClassVar[Tuning | None] = None

    C: float = with_default(PPDSparseSolver, "C", 0.5)
    bias_penalty: float = with_default(PPDSparseSolver, "bias_penalty", 1.0)
    row_norm: str = with_default(PPDSparseSolver, "row_norm", "l2")


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

    lam: float = with_default(MemoirSolver, "lam", 1.0)
    rounds: int = with_default(MemoirSolver, "rounds", 25)
    oracle: str = with_default(MemoirSolver, "oracle", "sw-graph")
    truncate: str = with_default(MemoirSolver, "truncate", "touched")


@dataclass(frozen=True)
class MemoirPaperFrozenSolver(MemoirPaperSolver):
    """MEMOIR with the rivals of a round searched before W changes, and margins tested at the step.

    The other reading of the same algorithm: the paper searches its graph in parallel, which needs
    one W for all samples of a batch.
    """

    group: int = with_default(MemoirSolver, "group", 0)
    margin_at: str = with_default(MemoirSolver, "margin_at", "step")


@dataclass(frozen=True)
class MemoirScriptsSolver(MemoirSolver):
    """MEMOIR as in its authors' scripts: draws by label, steps of eta / batch, no margin test.

    Left out: their constant feature, which makes most rows choose the same label, and their
    prediction by cosine.
    """

    baseline: ClassVar[bool] = True
    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of MEMOIR

    lam: float = with_default(MemoirSolver, "lam", 1.0)
    rounds: int = with_default(MemoirSolver, "rounds", 25)
    group: int = with_default(MemoirSolver, "group", 1000)
    step: str = with_default(MemoirSolver, "step", "batch")
    margin: float = with_default(MemoirSolver, "margin", 1e30)
    draws: str = with_default(MemoirSolver, "draws", "labels")
