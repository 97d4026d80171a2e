"""Well-known methods that are settings of PPDSparse's solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xcray.solvers.declarations import CompileCase
from xcray.solvers.parameters import parameter
from xcray.solvers.ppdsparse import PPDSparseSolver


@dataclass(frozen=True)
class DiSMECSolver(PPDSparseSolver):
    """One-vs-rest l2-regularised squared hinge; weights below 0.01 are dropped after solving.

    Source: Babbar, Schoelkopf, "DiSMEC", WSDM 2017, section 2: its problem is PPDSparse's with lam
    = 0.
    """

    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PPDSparse

    lam: float = parameter(0.0, "weight of the l1 norm", low=0.0)
    prune: float = parameter(
        0.01, "drop weights of at most this size after a class is solved", low=0.0
    )


@dataclass(frozen=True)
class L2SVMSolver(PPDSparseSolver):
    """One-vs-rest l2-regularised squared hinge with all weights.

    The problem of LIBLINEAR's one-vs-rest, solved with a certificate.
    """

    compile_cases: ClassVar[tuple[CompileCase, ...]] = ()  # the kernels of PPDSparse

    lam: float = parameter(0.0, "weight of the l1 norm", low=0.0)
