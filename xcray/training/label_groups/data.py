"""Training data whose groups of labels are further labels, and the groups of its trained parts."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xcray.arrays import frozen
from xcray.data.dataset import Dataset
from xcray.index.label_groups import LabelGroups
from xcray.kernels.sparse import transpose, transpose_pattern
from xcray.solvers.solved_labels import SolvedLabels
from xcray.training.label_groups.clustering import LabelClusters, add_group_rows


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


def make_groups(plan: GroupPlan, block: SolvedLabels) -> LabelGroups:
    """Return the groups of a model. block: the solved groups, numbered from 0."""
    (sizes, members), b = plan.clusters, frozen(block.bias, np.float32)
    return LabelGroups(sizes, transpose(block.W), b, members, plan.weight)
