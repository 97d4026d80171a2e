"""Training data whose groups of labels are further labels, and the groups of its trained parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from xcray.arrays import Int32, frozen
from xcray.data.dataset import Dataset
from xcray.index.label_groups import LabelGroups
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.solvers.contract import IndependentSolver
from xcray.solvers.solved_labels import SolvedLabels, concatenate
from xcray.training.label_groups.clustering import LabelClusters, add_group_rows

# Accuracy of the groups, whose scores are averaged and scaled: with ten times the gap of a label's
# default, held-out rows have the same measures, and groups have less than half the weights.
GROUP_EPS: Final = 0.1


class GroupPlan(NamedTuple):
    """Groups that a training adds to its labels, and the weight that their scores will have."""

    clusters: LabelClusters
    weight: float


def with_group_labels(data: Dataset, clusters: LabelClusters) -> Dataset:
    """Return a data set whose labels K to K + G - 1 are groups, in the training part.

    Everything else is that of the data set; groups have no names.
    """
    train = data.train
    YT = add_group_rows(train.YT, clusters)
    split = replace(train, Y=transpose_pattern(YT), YT=YT)
    grouped = replace(data, n_labels=YT.n_rows, splits={**data.splits, "train": split})
    # a file has the counts of the labels only
    vars(grouped)["label_counts"] = np.diff(YT.indptr)
    return grouped


def group_solver(solver: IndependentSolver) -> IndependentSolver:
    """Return the solver of groups: that of the labels with an eps of at least GROUP_EPS."""
    eps = getattr(solver, "eps", GROUP_EPS)
    return solver if eps >= GROUP_EPS else replace(solver, eps=GROUP_EPS)  # type: ignore[type-var]


@dataclass(frozen=True)
class LabelsAndGroups:
    """Solves labels, and labels from `first_group` on as groups."""

    solver: IndependentSolver
    first_group: int

    def solve(
        self, local: Any, labels: Int32, stopped: Callable[[], bool] = lambda: False
    ) -> SolvedLabels:
        """Solve labels (n,) int32, see `Solver`."""
        are_groups = labels >= self.first_group
        parts = ((self.solver, ~are_groups), (group_solver(self.solver), are_groups))
        solved = [
            solver.solve(local, frozen(labels[chosen], np.int32), stopped)
            for solver, chosen in parts
            if chosen.any()
        ]
        return concatenate(solved)

    def warm_up(self, local: Any = None) -> None:
        """Compile or load the kernels, see `Solver`."""
        self.solver.warm_up(local)


def make_groups(plan: GroupPlan, block: SolvedLabels) -> LabelGroups:
    """Return the groups of a model. block: the solved groups, numbered from 0."""
    (sizes, members), b = plan.clusters, frozen(block.bias, np.float32)
    return LabelGroups(sizes, transpose(block.W), b, members, plan.weight)
