"""How the workers of a group are created, and what parts of a training they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcray.arrays import csr, pattern
from xcray.data.dataset import Dataset
from xcray.errors import Corrupt, Unavailable, XcrayError
from xcray.solvers.group_contract import Layout, TrainingRows
from xcray.training.epoch_strategy import training_rows
from xcray.training.shards.assignment import ShardAssignment
from xcray.training.shards.shard_worker import ShardWorker
from xcray.training.shards.source import ShardSource, SplitPlan, split_plan
from xcray.workers.parts import Parts, ShareWorker
from xcray.workers.worker_group import WorkerGroup


@dataclass(frozen=True)
class RowWorkerFactory:
    """Creates the workers of a training from rows in this process.

    split: of rows into shards, for layouts with a grid.
    """

    solver: Any
    rows: TrainingRows
    layout: Layout
    split: SplitPlan | None = None

    def create_worker(self, worker: str, stopped: Callable[[], bool], /) -> Any:
        """Return a worker without shards, or without shares of the rows."""
        create = self.solver.create_worker
        if self.split is None:
            return ShareWorker(lambda share: create(self.open_rows(), share, self.layout, stopped))
        none = empty_rows(self.rows.X.n_cols, self.rows.Y.n_cols)
        return ShardWorker(create(none, 0, self.layout, stopped), self.open_source)

    def open_rows(self) -> TrainingRows:
        """Return the rows. Raises Unavailable if they are not here."""
        return self.rows

    def open_source(self) -> ShardSource | None:
        """Return what shards are cut from, None if the driver has to send them."""
        assert self.layout.grid is not None
        assert self.split is not None
        try:
            return ShardSource(self.layout.grid, self.split, self.open_rows())
        except Unavailable:
            return None

    def warm_up(self) -> None:
        """Compile or load the kernels."""
        self.solver.warm_up()


@dataclass(frozen=True)
class GroupWorkerFactory(RowWorkerFactory):
    """Creates the workers of a training from rows on disk, in any process.

    solver: its class must be importable by the workers. rows: none, with the numbers of features
    and labels. path, content_hash: of the data set, which the nodes of shares must see.
    """

    path: str = ""
    content_hash: str = ""

    def open_rows(self) -> TrainingRows:
        """Map the rows."""
        try:
            data = Dataset.open(Path(self.path))
            if data.content_hash != self.content_hash:
                raise Corrupt("another data set is there")
        except XcrayError as error:
            raise Unavailable(
                f"a worker does not see the data set ({error.message}): "
                "put it on a file system that all nodes share",
                code="UNSEEN",
            ) from error
        return training_rows(data)


def empty_rows(n_features: int, n_labels: int) -> TrainingRows:
    """Return no rows, with the numbers of features and labels."""
    return TrainingRows(csr([0], [], [], n_features), pattern([0], [], n_labels))


def shard_source(solver: Any, layout: Layout, rows: TrainingRows) -> ShardSource | None:
    """Return what the shards of a layout are cut from; None if it has none."""
    if layout.grid is None:
        return None
    split = split_plan(rows, layout.grid, solver.seed, solver.bias)
    return ShardSource(layout.grid, split, rows)


def make_parts(group: WorkerGroup, layout: Layout, source: ShardSource | None) -> Parts:
    """Return the parts of a layout: its shards, which are cut from `source`, or its shares."""
    if layout.grid is None or source is None:
        return Parts(group, layout.workers)
    return ShardAssignment(group, source, layout.grid)
