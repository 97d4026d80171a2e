"""One peer of the search: `python peer_worker.py FOLDER PEER` with the peers' Python.

It imports nothing of xcray. FOLDER contains the arrays of W (K x D), its transpose, the biases and
the queries as .npy. The worker prints {"ready": build seconds, "resident": bytes}. Then it answers
each line of JSON with one line of JSON, until the end of its input: {"first", "last", "k"} ->
{"ns": [...], "labels": [[...]]} for single queries, and {"rows", "k", "threads"} -> {"s": seconds}
for one call with many rows.
"""

from __future__ import annotations

import gc
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp


class Task:
    """Input of a peer.

    W with the biases as last column, (K, D + 1); queries X; X1: X with a column of ones.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.X = self.matrix("X")
        self.n_features = int(np.load(folder / "X_shape.npy")[1])
        self.X1 = widened(self.X, np.ones(self.X.shape[0], np.float32))
        self.W1 = widened(self.matrix("W"), np.load(folder / "b.npy"))

    def matrix(self, name: str) -> Any:
        """Return a CSR matrix with memory-mapped arrays."""
        parts = [
            np.load(self.folder / f"{name}_{part}.npy", mmap_mode="r")
            for part in ("data", "indices", "indptr")
        ]
        return sp.csr_matrix(
            tuple(parts), shape=tuple(np.load(self.folder / f"{name}_shape.npy")), copy=False
        )


def widened(matrix: Any, column: Any) -> Any:
    """Return a CSR matrix with one more column, which has a value in every row."""
    ends = matrix.indptr[1:].astype(np.int64)
    indices = np.insert(matrix.indices, ends, matrix.shape[1]).astype(np.int32)
    data = np.insert(matrix.data, ends, column).astype(np.float32)
    indptr = matrix.indptr + np.arange(matrix.shape[0] + 1)
    return sp.csr_matrix(
        (data, indices, indptr.astype(np.int32 if len(data) < 2**31 else np.int64)),
        shape=(matrix.shape[0], matrix.shape[1] + 1),
    )


def owned(X: Any) -> Any:
    """Return the queries as a matrix that a library can modify."""
    return sp.csr_matrix(
        (np.array(X.data), np.array(X.indices, np.int32), np.array(X.indptr, np.int32)),
        shape=X.shape,
    )


class UncopiedArray(np.ndarray):
    """An array whose copy as the same type is itself.

    sparse_dot_topn copies the indices of all weights in every call, which takes longer than its
    search.
    """

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        same = np.dtype(dtype) == self.dtype
        return self.view(np.ndarray) if same else super().astype(dtype, *args, **kwargs)


class SparseDotTopn:
    """sparse_dot_topn: a product that keeps the best of each row; biases are a common feature."""

    def __init__(self, task: Task) -> None:
        from sparse_dot_topn import sp_matmul_topn

        self.multiply = sp_matmul_topn
        self.by_feature = sp.csr_matrix(task.W1.T)
        self.by_feature.indices = self.by_feature.indices.astype(np.int32).view(UncopiedArray)
        self.by_feature.indptr = self.by_feature.indptr.astype(np.int32).view(UncopiedArray)
        self.X = task.X1
        self.rows = [self.X[i] for i in range(self.X.shape[0])]

    def one(self, i: int, k: int) -> Any:
        return self.batch(self.rows[i], k, 1).indices

    def batch(self, X: Any, k: int, threads: int) -> Any:
        lowest = float(
            np.finfo(np.float32).min
        )  # without it, negative scores (most of them) are dropped
        return self.multiply(
            X, self.by_feature, top_n=k, threshold=lowest, sort=True, n_threads=threads
        )


class Pecos:
    """PECOS: one layer with all labels, loaded only for prediction, in its fastest format."""

    kind = "BINARY_SEARCH_CHUNKED"

    def __init__(self, task: Task) -> None:
        from pecos.xmc import MLModel
        from pecos.xmc.base import HierarchicalMLModel
        from pecos.xmc.xlinear.model import XLinearModel

        params = MLModel.PredParams(only_topk=5, post_processor="noop")
        layer = MLModel(
            W=sp.csc_matrix(task.W1.T, dtype=np.float32), C=None, bias=1.0, pred_params=params
        )
        place = str(task.folder / f"pecos-{self.kind}")
        XLinearModel(HierarchicalMLModel([layer])).save(place)
        self.model = XLinearModel.load(place, is_predict_only=True, weight_matrix_type=self.kind)
        self.X = owned(task.X)
        self.rows = [self.X[i] for i in range(self.X.shape[0])]

    def one(self, i: int, k: int) -> Any:
        return self.model.predict(self.rows[i], only_topk=k, threads=1).indices

    def batch(self, X: Any, k: int, threads: int) -> Any:
        return self.model.predict(X, only_topk=k, threads=threads)


class PecosHash(Pecos):
    """PECOS with its hashed weight format."""

    kind = "HASH_CHUNKED"


class NapkinXC:
    """napkinXC: its one-vs-rest predictor, with the weights in its file format.

    A score becomes a probability, in the same order.
    """

    def __init__(self, task: Task) -> None:
        from napkinxc.models import BR

        place = task.folder / "napkinxc"
        place.mkdir(exist_ok=True)
        with (place / "weights.bin").open("wb") as file:
            file.write(struct.pack("<i", task.W1.shape[0]))
            for label in range(task.W1.shape[0]):
                lo, hi = task.W1.indptr[label], task.W1.indptr[label + 1]
                pairs = np.empty(hi - lo, dtype=[("index", "<i4"), ("value", "<f4")])
                # the bias is feature 1 there, and column f feature f + 2
                pairs["index"] = np.concatenate([[1], task.W1.indices[lo : hi - 1] + 2])
                pairs["value"] = np.roll(task.W1.data[lo:hi], 1)
                sizes = (task.n_features + 3, len(pairs))
                # two classes, the first is the positive one, logistic link; then the sparse
                # vector; no gradients
                file.write(
                    struct.pack("<3i4Q?", 2, 1, 0, *sizes, *sizes, True) + pairs.tobytes() + b"\0"
                )
        tiny = sp.csr_matrix(np.array([[1.0], [0.5]], np.float32))
        small = BR(str(task.folder / "napkinxc-small"), norm=False, threads=1)
        small.fit(tiny, sp.csr_matrix(np.array([[1.0], [0.0]])))  # writes its settings file
        (place / "args.bin").write_bytes((task.folder / "napkinxc-small" / "args.bin").read_bytes())
        self.model = BR(str(place), norm=False, threads=1)
        self.model.load()
        self.X = owned(task.X)
        self.rows = [self.X[i] for i in range(self.X.shape[0])]

    def one(self, i: int, k: int) -> Any:
        return self.batch(self.rows[i], k, 1)[0]

    def batch(self, X: Any, k: int, threads: int) -> Any:
        self.model.set_params(threads=threads)
        return self.model.predict(X, top_k=k)


class Nmslib:
    """nmslib: an index over sparse vectors with inner product; biases are a common feature."""

    method = "simple_invindx"
    build: ClassVar[dict[str, int]] = {}
    ask: ClassVar[dict[str, int]] = {}

    def __init__(self, task: Task) -> None:
        import nmslib

        kind = nmslib.DataType.SPARSE_VECTOR
        self.index = nmslib.init(method=self.method, space="negdotprod_sparse_fast", data_type=kind)
        self.fill(task)
        if self.ask:
            self.index.setQueryTimeParams(self.ask)
        self.X = task.X1
        self.rows = [self.X[i] for i in range(self.X.shape[0])]

    def fill(self, task: Task) -> None:
        self.index.addDataPointBatch(task.W1)
        self.index.createIndex()

    def one(self, i: int, k: int) -> Any:
        return self.batch(self.rows[i], k, 1)[0][0]

    def batch(self, X: Any, k: int, threads: int) -> Any:
        return self.index.knnQueryBatch(X, k=k, num_threads=threads)


class Graph(Nmslib):
    """nmslib's navigable graph, searched with a list of 200."""

    method = "hnsw"
    build: ClassVar[dict[str, int]] = {
        "M": 16,
        "efConstruction": 100,
        "indexThreadQty": 1,
        "post": 0,
    }
    ask: ClassVar[dict[str, int]] = {"efSearch": 200}

    def fill(self, task: Task) -> None:
        path = task.folder / "hnsw"
        if path.exists():
            self.index.loadIndex(str(path), load_data=True)
            return
        self.index.addDataPointBatch(task.W1)
        self.index.createIndex(self.build)
        self.index.saveIndex(str(path), save_data=True)


class GraphWide(Graph):
    """The same graph, searched with a list of 1,000."""

    ask: ClassVar[dict[str, int]] = {"efSearch": 1000}


PEERS: dict[str, Any] = {
    "sparse_dot_topn": SparseDotTopn,
    "pecos": Pecos,
    "pecos_hash": PecosHash,
    "napkinxc": NapkinXC,
    "nmslib_inverted": Nmslib,
    "nmslib_hnsw": Graph,
    "nmslib_hnsw_wide": GraphWide,
}


def resident() -> int:
    """Return the resident bytes of this process; 0 without /proc."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def answer(peer: Any, options: dict[str, int]) -> dict[str, Any]:
    """Answer one request."""
    now = time.perf_counter_ns
    if "rows" in options:
        X = peer.X[: options["rows"]]
        began = now()
        peer.batch(X, options["k"], options["threads"])
        return {"s": (now() - began) * 1e-9}
    took, labels = [], []
    for i in range(options["first"], options["last"]):
        began = now()
        result = peer.one(i, options["k"])
        took.append(now() - began)
        labels.append([int(entry[0] if isinstance(entry, tuple) else entry) for entry in result])
    return {"ns": took, "labels": labels}


def main() -> None:
    """Build, and answer until the input ends.

    Only our lines go to the standard output, because libraries print there too.
    """
    out = sys.stdout
    sys.stdout = sys.stderr
    folder, name = Path(sys.argv[1]), sys.argv[2]
    began = time.perf_counter()
    peer = PEERS[name](Task(folder))
    gc.collect()  # frees the arrays of the task that the peer does not use
    print(
        json.dumps({"ready": time.perf_counter() - began, "resident": resident()}),
        file=out,
        flush=True,
    )
    for line in sys.stdin:
        print(json.dumps(answer(peer, json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
