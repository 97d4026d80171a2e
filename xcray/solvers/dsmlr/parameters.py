"""Parameters of DS-MLR, and when a training with them ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xcray.schedule.rotation import ORDERS
from xcray.solvers.declarations import StoppingRule
from xcray.solvers.parameters import Parameters, parameter

STEP_RULES: Final = ("adaptive", "sqrt")


@dataclass(frozen=True)
class DSMLRParameters(Parameters):
    """Parameters of `DSMLRSolver`."""

    lam: float = parameter(
        1e-5, "weight of the squared l2 norm, relative to the mean loss", above=0.0
    )
    bias: float = parameter(
        0.0, "value of a constant feature, regularised like the others; 0: no such feature", low=0.0
    )
    epochs: int = parameter(
        500, "maximum number of epochs; each row meets each label once per epoch", low=1
    )
    tolerance: float = parameter(
        1e-4, "stop when an epoch lowers the objective by at most this share", low=0.0, high=1.0
    )
    lbfgs_switch_tol: float = parameter(
        0.03,
        "switch to L-BFGS when a stochastic epoch lowers the objective by less than this share; "
        "0: never",
        low=0.0,
    )
    history: int = parameter(
        5,
        "number of steps that L-BFGS keeps; 0: never switch to L-BFGS",
        low=0,
        high=100,
    )
    early_stopping_rounds: int = parameter(
        0,
        "stop when the held-out loss has not fallen for this many sync points; 0: never",
        low=0,
    )
    passes: int = parameter(
        1,
        "sweeps per epoch; 1: partial sums and steps together; 2: steps, then sums",
        low=1,
        high=2,
    )
    order: str = parameter(
        "ring",
        "routing of blocks: sync and ring rotate with and without barriers; "
        "uniform: random worker; shortest: least busy worker",
        choices=ORDERS,
    )
    steps: str = parameter(
        "adaptive",
        "step sizes; adaptive: one per feature; sqrt: one for all, falling with the epochs",
        choices=STEP_RULES,
    )
    rate: float = parameter(
        1.0,
        "factor of the step sizes; without L-BFGS, of those that are best for a sample of rows",
        above=0.0,
    )
    sync_every: int = parameter(
        1,
        "epochs between two sync points, at which the objective is computed",
        low=1,
        high=1_000_000,
    )
    shards: int = parameter(0, "shards of rows; 0: two per worker", low=0, high=1 << 20)
    blocks: int = parameter(
        0,
        "blocks of labels; 0: two per worker, or one if there are few labels, of at most 64 MB",
        low=0,
        high=1 << 20,
    )
    prune: float = parameter(0.0, "drop weights of at most this size at the end", low=0.0)
    prune_keep: int = parameter(0, "number of largest weights to keep per label; 0: all", low=0)
    seed: int = parameter(0, "seed of all random numbers", low=0)

    @property
    def exact_phase(self) -> bool:
        """Return whether L-BFGS takes over when stochastic steps have become slow."""
        return self.history > 0 and self.lbfgs_switch_tol > 0.0

    @property
    def stopping(self) -> StoppingRule:
        """Return when the training ends; `decide` returns the reason of a run."""
        reached = f"an epoch lowers the objective by less than {self.tolerance:g} of it"
        rounds = self.early_stopping_rounds
        early = f"the held-out loss has not fallen for {rounds} sync points"
        names = ("tolerance", "epochs")
        return StoppingRule("tolerance", self.tolerance, self.epochs, reached, names, early)

    def sweep_kinds(self, epochs: int) -> tuple[str, ...]:
        """Return the kinds of the sweeps of an interval of `epochs` stochastic epochs.

        The last one evaluates held-out rows, with exact objective and b.
        """
        if self.passes == 1:
            return ("both",) * epochs + ("observe",)
        return (*(("update", "sum") * epochs)[:-1], "observe")
