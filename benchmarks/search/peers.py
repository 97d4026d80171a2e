"""Peers of the search, each in its own process and Python, with the same weights and queries."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.run import ONE_THREAD
from benchmarks.search.models import Subject
from benchmarks.search.timing import Engine
from xcray.arrays import CSR, csr_from

WORKER = Path(__file__).with_name("peer_worker.py")
# the package of each peer, and its maximum number of labels: larger graphs and hash maps take hours
# or too much memory
PEERS = {
    "sparse_dot_topn": ("sparse_dot_topn", None),
    "pecos": ("pecos", None),
    "pecos_hash": ("pecos", None),
    "napkinxc": ("napkinxc", 50_000),
    "nmslib_inverted": ("nmslib", None),
    "nmslib_hnsw": ("nmslib", 10_000),
    "nmslib_hnsw_wide": ("nmslib", 10_000),
}
LARGE = 50_000_000  # weights


class Unusable(Exception):
    """A peer cannot be measured; the message contains the reason."""


class Peer:
    """A peer's process. `Peer(...)` returns when the index is built.

    Raises Unusable if the process ends, or is not ready after `limit` seconds.
    """

    def __init__(self, name: str, python: Path, folder: Path, limit: float) -> None:
        self.name = name
        self.limit = limit
        self.log = (folder / f"{name}.log").open("w+")
        command = [
            str(python),
            "-P",
            str(WORKER),
            str(folder),
            name,
        ]  # -P: the files next to the worker must not shadow libraries
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={
                **os.environ,
                **{key: value for key, value in ONE_THREAD.items() if key != "OMP_NUM_THREADS"},
            },
        )
        try:
            self.account = self._read()
        except Unusable:
            self.close()
            raise

    def send_request(self, **query: int) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        assert self.process.stdin is not None
        print(json.dumps(query), file=self.process.stdin, flush=True)
        return self._read()

    def ask(self, first: int, last: int, k: int) -> tuple[list[int], list[Any]]:
        """Return nanoseconds and labels of the queries first..last-1."""
        result = self.send_request(first=first, last=last, k=k)
        return result["ns"], result["labels"]

    def batch(self, rows: int, k: int, threads: int) -> float:
        """Return the seconds for the first rows in one call."""
        return float(self.send_request(rows=rows, k=k, threads=threads)["s"])

    def close(self) -> None:
        """End the process and discard its output."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            stream.close()

    def _read(self) -> dict[str, Any]:
        """Read one line of the process."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            ready = waiting.select(self.limit)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return dict(json.loads(line))
        if not ready:
            raise Unusable(f"no answer within {self.limit:.0f} s")
        self.process.wait()
        self.log.seek(0)
        messages = [entry for entry in self.log.read().splitlines() if entry.strip()]
        raise Unusable((messages or [f"ended with {self.process.returncode}"])[-1][:200])


def write(subject: Subject, W: CSR, b: Any, folder: Path) -> None:
    """Write the arrays of a task in the format of the worker."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, matrix in {"W": W, "X": subject.X}.items():
        for part in ("indptr", "indices", "data"):
            np.save(folder / f"{name}_{part}.npy", getattr(matrix, part))
        np.save(folder / f"{name}_shape.npy", matrix.shape)
    np.save(folder / "b.npy", np.asarray(b, np.float32))


def part_of(subject: Subject, most: int | None) -> tuple[CSR, Any, Any]:
    """Return W, b and label numbers for a peer: all, or `most` of them, evenly spaced."""
    K = subject.model.n_labels
    chosen = (
        np.arange(K) if most is None or most >= K else np.linspace(0, K - 1, most).astype(np.int64)
    )
    if len(chosen) == K:
        return subject.model.W, subject.model.b, chosen
    return csr_from(subject.model.W.to_scipy()[chosen]), subject.model.b[chosen], chosen


def groups(subject: Subject, names: list[str]) -> list[list[str]]:
    """Return the peers that run at the same time: all, or one by one where each needs gigabytes."""
    return [names] if subject.model.nnz < LARGE else [[name] for name in names]


@contextmanager
def running(
    subject: Subject,
    names: list[str],
    absent: dict[str, str],
    python: Path,
    folder: Path,
    limit: float,
) -> Iterator[tuple[list[Engine], dict[str, str], dict[str, Any]]]:
    """Yield the engines of usable peers, why the others are not, and the build costs.

    The peers are ended afterwards.
    """
    peers: list[Peer] = []
    why = {name: absent[PEERS[name][0]] for name in names if PEERS[name][0] in absent}
    accounts: dict[str, Any] = {}
    try:
        for name in (name for name in names if name not in why):
            W, b, chosen = part_of(subject, PEERS[name][1])
            place = folder / f"{subject.name}-{len(chosen)}"
            if not (place / "b.npy").exists():
                write(subject, W, b, place)
            print(f"{subject.name}: building {name} of {len(chosen)} labels", flush=True)
            began = time.perf_counter()
            try:
                peer = Peer(name, python, place, limit)
            except Unusable as unusable:
                why[name] = str(unusable)
                continue
            peers.append(peer)
            accounts[name] = {
                **peer.account,
                "labels": len(chosen),
                "seconds": time.perf_counter() - began,
            }
        yield (
            [engine_of(peer, part_of(subject, PEERS[peer.name][1])[2]) for peer in peers],
            why,
            accounts,
        )
    finally:
        for peer in peers:
            peer.close()


def engine_of(peer: Peer, numbers: Any) -> Engine:
    """Return a peer as an engine whose labels are those of the whole model."""

    def ask(first: int, last: int, k: int) -> tuple[list[int], list[Any]]:
        took, labels = peer.ask(first, last, k)
        return took, [numbers[np.asarray(own, np.int64)] for own in labels]

    return Engine(peer.name, ask, peer.batch, numbers)
