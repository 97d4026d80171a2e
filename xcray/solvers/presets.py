"""Machines that are settings of PPDSparse's solver, by their names in the field."""

from __future__ import annotations

from dataclasses import dataclass

from xcray.solvers.parameters import parameter
from xcray.solvers.ppdsparse import PPDSparseSolver


@dataclass(frozen=True)
class DiSMECSolver(PPDSparseSolver):
    """One-vs-all l2-regularised squared hinge, weights below 0.01 dropped after solving.

    Source: Babbar, Schoelkopf, "DiSMEC", WSDM 2017, section 2: its problem is PPDSparse's with lam = 0.
    """

    lam: float = parameter(0.0, "weight of the l1 norm", low=0.0)
    prune: float = parameter(
        0.01, "weights of at most this size are dropped after a class is solved", low=0.0
    )


@dataclass(frozen=True)
class L2SVMSolver(PPDSparseSolver):
    """One-vs-all l2-regularised squared hinge, all weights kept: what LIBLINEAR's one-vs-rest solves, with a certificate."""

    lam: float = parameter(0.0, "weight of the l1 norm", low=0.0)
