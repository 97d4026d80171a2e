"""Trees of a metric forest as tasks of Ray: one random block of rows per task."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import ray

from xcray.arrays import CSR, Int64
from xcray.data.metric_forest.directory import TreeMap
from xcray.data.metric_forest.forest import Tree, build_tree
from xcray.workers.ray.cluster_state import REFRESH_SECONDS, ClusterView

MAX_RETRIES = 10  # of a task whose worker or node is lost


class TreesOnRay(TreeMap):
    """Builds trees on the Ray of this process, at most two per worker at a time.

    A task that is lost with its worker runs again. The blocks are held by this process, and copies
    of them in Ray's object store.
    """

    def __init__(self, workers: int) -> None:
        self.in_flight = 2 * workers
        self._cluster = ClusterView()
        self._build: Any = ray.remote(max_retries=MAX_RETRIES)(build_tree)

    def __call__(
        self, blocks: Iterator[tuple[Int64, CSR]], leaf_rows: int
    ) -> Iterator[tuple[Int64, CSR, Tree]]:
        """Yield each block with its tree, in their order. Raises Unavailable if Ray ends."""
        pending: deque[tuple[Int64, CSR, Any]] = deque()
        for number, (members, block) in enumerate(blocks):
            pending.append((members, block, self._build.remote(block, number, leaf_rows)))
            if len(pending) == self.in_flight:
                yield self._first_tree(pending)
        while pending:
            yield self._first_tree(pending)

    def _first_tree(self, pending: deque[tuple[Int64, CSR, Any]]) -> tuple[Int64, CSR, Tree]:
        """Wait for the first block; remove and return it with its tree."""
        members, block, reference = pending.popleft()
        while not ray.wait([reference], timeout=REFRESH_SECONDS)[0]:
            self._cluster.refresh()  # a head that is gone would end this process after a minute
        return members, block, ray.get(reference)
