"""Rounds of MEMOIR whose rivals are found in a small-world graph of the classes that follows W."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from xcray.arrays import CSR, csr
from xcray.kernels.training import memoir as kernel
from xcray.kernels.training import memoir_graph as graph_kernel
from xcray.solvers.memoir.margin_errors import SAMPLE_ROWS, measure_errors
from xcray.solvers.memoir.rounds import SLICE_ENTRIES, Draw, Exchange, Rounds, list_positions
from xcray.storage.array_files import Arrays


class GraphRounds(Rounds):
    """W by class, its graph, and the rounds that change both.

    With groups of one sample the graph follows every step, and searches run on one thread. With
    larger groups threads share the searches of a group, and the classes that it changed are
    inserted again after it.
    """

    by_class: ClassVar[bool] = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        K, D = self.problem.Y.n_cols, self.problem.X.n_cols
        self._graph = _new_graph(K)
        self._graph_scratch = [_new_scratch(each, D) for each in self._scratch]

    def weights(self) -> CSR:
        """Return the weights that are not 0: (K, D)."""
        K, at, heads = self.problem.Y.n_cols, self.state[0], self.lists.heads
        positions = list_positions(heads)
        features = self.lists.entries["label"][positions]
        values = self.lists.entries["value"][positions].astype(np.float64)
        if len(self.lists.marks):
            excess = np.abs(values) - (at["threshold"] - self.lists.marks[positions])
            values = np.sign(values) * np.maximum(excess, 0.0)
        values *= at["scale"]
        owners = np.repeat(np.arange(K), heads["size"])
        order = np.lexsort((features, owners))
        order = order[values[order] != 0.0]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(owners[order], minlength=K))])
        limit = float(np.finfo(np.float32).max)
        data = np.clip(values[order], -limit, limit)
        return csr(indptr, features[order], data, self.problem.X.n_cols)

    def saved_graph(self) -> Arrays:
        """Return the edges and the members of the graph."""
        members = self._graph.members[: self._graph.size[0]]
        return {"graph.targets": self._graph.targets, "graph.members": members}

    def restore_graph(self, arrays: Arrays) -> None:
        """Set the graph to a saved one."""
        self._graph = _new_graph(self.problem.Y.n_cols)
        members = arrays["graph.members"]
        self._graph.members[: len(members)] = members
        self._graph.is_member[members] = True
        self._graph.size[0] = len(members)
        graph_kernel.set_edges(self._graph, arrays["graph.targets"])

    def _take_steps(self, draw: Draw) -> Exchange:
        """Take the steps of all samples of a round."""
        yield from ()
        searches = self.group == 1
        tests = self.params.margin_at == "step"
        every = max(1, self.batch // SAMPLE_ROWS)
        how = graph_kernel.GraphSearch(searches, tests, every)
        seconds = 0.0
        for lo, hi in [(0, self.batch)] if searches else self._groups():
            began = time.perf_counter()
            if not searches:
                self._search_group(draw, how, lo, hi)
                seconds += time.perf_counter() - began
            self._step_samples(draw, how, lo, hi)
            if searches:  # of searches and steps, which alternate
                seconds += time.perf_counter() - began
            else:
                self._insert_changed(draw, lo, hi)
        norm = float(np.sqrt(self.state["norm_sq"][0]))
        rate = self.batch / max(seconds, 1e-9)
        errors = measure_errors(draw.number, draw.leads, self.capacity, norm, rate, 0.0)
        self.errors.append(errors)

    def _search_group(self, draw: Draw, how: graph_kernel.GraphSearch, lo: int, hi: int) -> None:
        """Write the rivals of samples lo .. hi - 1, on all threads of this worker."""

        def search(thread: int, at: int, end: int) -> int:
            return graph_kernel.search_in_graph(
                *self._arguments(draw, how, thread),
                at,
                end,
                draw.rivals,
                draw.leads,
                self.state,
                SLICE_ENTRIES,
            )

        self.share.run_threads(lo, hi, search, draw.stopped)

    def _step_samples(self, draw: Draw, how: graph_kernel.GraphSearch, lo: int, hi: int) -> None:
        """Take the steps of samples lo .. hi - 1, one after the other."""

        def advance() -> int:
            return graph_kernel.advance_in_graph(
                *self._arguments(draw, how, 0),
                hi,
                draw.rivals,
                draw.leads,
                draw.step,
                self.state,
                SLICE_ENTRIES,
            )

        self._run_steps(draw, lo, advance)

    def _arguments(
        self, draw: Draw, how: graph_kernel.GraphSearch, thread: int
    ) -> tuple[
        kernel.MemoirBatch,
        kernel.MemoirSettings,
        graph_kernel.GraphSearch,
        kernel.FeatureLists,
        graph_kernel.SmallWorld,
        graph_kernel.GraphScratch,
    ]:
        """Return the first arguments of the kernels."""
        scratch = self._graph_scratch[thread]
        return draw.batch, self._settings, how, self.lists, self._graph, scratch

    def _insert_changed(self, draw: Draw, lo: int, hi: int) -> None:
        """Insert the classes again that samples lo .. hi - 1 have changed."""
        batch, rivals = draw.batch, draw.rivals
        steps = np.flatnonzero(rivals[lo:hi] >= 0) + lo
        changed = np.concatenate([batch.classes[steps], rivals[steps]])
        classes, first = np.unique(changed, return_index=True)
        numbers = np.tile(batch.numbers[steps], 2)[first]
        graph_kernel.insert_classes(
            self.lists, self._graph, self._graph_scratch[0], classes, numbers, self.state
        )


def _new_graph(K: int) -> graph_kernel.SmallWorld:
    """Return a graph without members."""
    edges = K * graph_kernel.NEIGHBOURS
    return graph_kernel.SmallWorld(
        targets=np.full(edges, -1, np.int32),
        first=np.full(K, -1, np.int32),
        next=np.full(edges, -1, np.int32),
        previous=np.full(edges, -1, np.int32),
        members=np.full(K, -1, np.int32),
        is_member=np.zeros(K, bool),
        size=np.zeros(1, np.int64),
    )


def _new_scratch(classes: kernel.MemoirScratch, D: int) -> graph_kernel.GraphScratch:
    """Return the scratch memory of a thread."""
    return graph_kernel.GraphScratch(
        classes,
        query=np.zeros(D),
        seen=np.zeros(len(classes.scores), np.int64),
        labels=np.zeros(graph_kernel.BEAM, np.int32),
        values=np.zeros(graph_kernel.BEAM),
        is_open=np.zeros(graph_kernel.BEAM, bool),
    )
