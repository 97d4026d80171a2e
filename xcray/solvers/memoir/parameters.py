"""Parameters of MEMOIR."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xcray.errors import ParameterError
from xcray.kernels.row_norm import ROW_NORMS
from xcray.solvers.parameters import Parameters, parameter


@dataclass(frozen=True)
class MemoirParameters(Parameters):
    """Parameters of `xcray.solvers.memoir.solver.MemoirSolver`."""

    penalty: str = parameter("l2", "norm of the weights in the objective", choices=("l2", "l1"))
    lam: float = parameter(1e-5, "weight of the penalty", above=0.0)
    rounds: int = parameter(100, "number of rounds", low=1, high=1_000_000)
    batch: int = parameter(
        0,
        "samples drawn per round; 0: 100 times the square root of the number of classes with rows",
        low=0,
    )
    eta0: float = parameter(0.1, "first step size", above=0.0)
    eta_step: float = parameter(0.02, "decay of the step size, per round", low=0.0)
    step: str = parameter(
        "sample",
        "size of a sample's step: eta (sample) or eta / batch (batch)",
        choices=("sample", "batch"),
    )
    margin: float = parameter(
        1.0,
        "steps are taken for samples whose label leads by less than this",
        above=0.0,
        high=1e30,
    )
    oracle: str = parameter(
        "exact",
        "search of the most violating class; sw-graph: by a graph of the classes that follows W; "
        "nmslib, lsh: by an index of W that is built for each group; random: a control",
        choices=("exact", "sw-graph", "nmslib", "lsh", "random"),
    )
    bits: int = parameter(64, "lsh: length of a code, a multiple of 64", low=64, high=8192)
    components: int = parameter(
        0, "lsh: singular vectors of W that rows are projected on; 0: none", low=0
    )
    group: int = parameter(
        1,
        "draws whose labels are searched before W changes; above 1, threads or workers share "
        "them; 0: all draws of a round",
        low=0,
        high=1000,
    )
    margin_at: str = parameter(
        "search",
        "test the margin of a draw with the search of its group, or just before its own step",
        choices=("search", "step"),
    )
    truncate: str = parameter(
        "all",
        "l1: move all weights towards 0 after a round, or those of the classes in its draws, in "
        "proportion more (touched: eq. 13 of the paper)",
        choices=("all", "touched"),
    )
    draws: str = parameter(
        "rows",
        "draw samples uniformly, or labels uniformly and then a sample of the label",
        choices=("rows", "labels"),
    )
    labels: str = parameter(
        "all",
        "samples of a row with several labels: one for each, or for the first only",
        choices=("all", "first"),
    )
    early_stopping_rounds: int = parameter(
        0,
        "stop when macro-F1 on held-out training rows has not risen for this many rounds, "
        "and keep the best weights; 0: never",
        low=0,
    )
    held_out: float = parameter(
        0.1, "share of the training rows that early stopping holds out", above=0.0, high=0.5
    )
    eval_every: int = parameter(1, "rounds between two evaluations of the held-out rows", low=1)
    average_from: int = parameter(
        0, "the model has the mean weights of the rounds from this one on; 0: no mean", low=0
    )
    row_norm: str = parameter(
        "none",
        "normalisation of all rows, in training and in every request; l2: to length 1",
        choices=ROW_NORMS,
    )
    prune: float = parameter(0.0, "drop weights of at most this size after training", low=0.0)
    seed: int = parameter(0, "seed of the draws", low=0)

    def __post_init__(self) -> None:
        """Check the parameters; raise ParameterError if a step would reverse the weights."""
        super().__post_init__()
        if self.penalty == "l2" and self.step_size(1) * self.lam >= 1.0:
            raise ParameterError(
                f"eta0 * lam must be below 1 + eta_step, not {self.eta0 * self.lam:g}: "
                "lower eta0 or lam"
            )
        if self.bits % 64:
            raise ParameterError(f"bits must be a multiple of 64, not {self.bits}")

    @property
    def shrinks_all(self) -> bool:
        """Return whether all weights move towards 0 after a round."""
        return self.penalty == "l1" and self.truncate == "all"

    @property
    def is_approximate(self) -> bool:
        """Return whether the search can miss the most violating class."""
        return self.oracle not in ("exact", "random")

    def step_size(self, number: int) -> float:
        """Return eta of round `number`, from 1."""
        return self.eta0 / (1.0 + self.eta_step * number)

    def batch_size(self, n_labels: int) -> int:
        """Return the number of samples per round."""
        return self.batch or math.ceil(100.0 * math.sqrt(n_labels))
