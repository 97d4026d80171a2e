"""One training of one peer: `python worker.py TASK.json` with the Python of the peers' environment.

Its last line is JSON. It imports nothing of xcray, because it must run where only the peers are
installed. The task folder is described in `benchmarks.peers.data`. Only `train` is measured, in CPU
seconds of this process. Reading and converting come before, prediction after. Every peer runs with
its defaults except for one thread, squared hinge loss, C, and the threshold of small weights. A
task with `unit` gives it rows of length 1.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp


class Peer(Protocol):
    """Steps of every peer below, in this order."""

    def train(self) -> None:
        """Train. Only this step is measured."""

    def top(self, X: Any, k: int) -> Any:
        """Return (rows, k) columns of Y, best first; -1 where there are fewer."""

    def account(self) -> dict[str, Any]:
        """Return facts of this run: bytes of the model, weights, classes that did not converge."""


class Problem:
    """The input files of a task: X (N x D) float32 and Y (N x K), both scipy CSR."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.folder = Path(task["folder"])
        self.scratch = Path(task["scratch"])
        self.C = float(task["C"])
        self.prune = float(task["prune"])
        self.program = task.get("program")
        self.X = read_rows(task, "train_x.npz")
        self.Y = sp.load_npz(self.folder / "train_y.npz")


def read_rows(task: dict[str, Any], name: str) -> Any:
    """Return the rows of a file of the task, divided by their lengths if the task says so."""
    X = sp.load_npz(Path(task["folder"]) / name).tocsr()
    if task.get("unit"):
        lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1), np.float64).ravel())
        X = sp.diags(1.0 / np.where(lengths > 0.0, lengths, 1.0)) @ X
    return X.tocsr().astype(np.float32)


class Liblinear:
    """LIBLINEAR: scikit-learn's LinearSVC, one class at a time.

    tol: of the dual solver; None uses all of scikit-learn's defaults.
    """

    def __init__(self, problem: Problem, tol: float | None) -> None:
        self.X = problem.X.astype(np.float64)
        self.Y = problem.Y.tocsc()
        self.settings: dict[str, Any] = {"C": problem.C, "random_state": 0}
        if tol is not None:
            self.settings |= {"tol": tol, "dual": True}
        shape = (self.Y.shape[1], self.X.shape[1])
        self.W = np.zeros(shape, np.float32)
        self.b = np.zeros(shape[0])
        self.unconverged = 0

    def train(self) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.svm import LinearSVC

        for label in range(self.Y.shape[1]):
            y = np.full(self.X.shape[0], -1, np.int64)  # int8 overflows inside scikit-learn
            y[self.Y.indices[self.Y.indptr[label] : self.Y.indptr[label + 1]]] = 1
            if (y == y[0]).all():
                self.b[label] = y[0]
                continue
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", ConvergenceWarning)
                model = LinearSVC(**self.settings).fit(self.X, y)
            self.unconverged += len(caught)
            self.W[label], self.b[label] = model.coef_[0], model.intercept_[0]

    def top(self, X: Any, k: int) -> Any:
        parts = [
            best(X[at : at + 4096] @ self.W.T + self.b, k) for at in range(0, X.shape[0], 4096)
        ]
        return np.concatenate(parts)

    def account(self) -> dict[str, Any]:
        weights = int(np.count_nonzero(self.W))
        return {
            "model_bytes": 8 * (self.W.size + len(self.b)),
            "weights": weights,
            "not_converged": self.unconverged,
        }


class NapkinXC:
    """napkinXC: `BR` is LIBLINEAR one-vs-rest without a copy of X per label, `PLT` a label tree."""

    def __init__(self, problem: Problem, kind: str) -> None:
        from napkinxc import models

        self.X = problem.X
        self.Y = problem.Y
        self.folder = problem.scratch / "napkinxc"
        settings = {
            "loss": "l2",
            "liblinear_c": problem.C,
            "weights_threshold": problem.prune,
            "threads": 1,
        }
        # the clustering of PLT crashes on rows that are not normalised; its default normalises them
        special = {"seed": 0} if kind == "PLT" else {"norm": False}
        self.model = getattr(models, kind)(str(self.folder), **settings, **special)

    def train(self) -> None:
        self.model.fit(self.X, self.Y)

    def top(self, X: Any, k: int) -> Any:
        self.model.load()
        return padded(self.model.predict(X, top_k=k), k)

    def account(self) -> dict[str, Any]:
        return {"model_bytes": tree_bytes(self.folder)}


class Pecos:
    """PECOS XR-Linear: one layer with all labels, or the tree of its documentation.

    The tree uses PIFA and hierarchical k-means.
    """

    def __init__(self, problem: Problem, tree: bool) -> None:
        self.X = problem.X.astype(np.float32)
        self.Y = problem.Y.tocsc().astype(np.float32)
        self.X.sort_indices()
        self.C = problem.C
        self.prune = problem.prune
        self.tree = tree
        self.folder = problem.scratch / "pecos"

    def train(self) -> None:
        from pecos.xmc import Indexer, LabelEmbeddingFactory
        from pecos.xmc.xlinear.model import XLinearModel

        chain = None
        if self.tree:
            chain = Indexer.gen(
                LabelEmbeddingFactory.create(self.Y, self.X, method="pifa", threads=1), threads=1
            )
        costs = {"Cp": self.C, "Cn": self.C, "threshold": self.prune}
        self.model = XLinearModel.train(self.X, self.Y, C=chain, threads=1, **costs)

    def top(self, X: Any, k: int) -> Any:
        scores = self.model.predict(X.astype(np.float32), only_topk=k, threads=1).tocsr()
        rows = [slice(scores.indptr[row], scores.indptr[row + 1]) for row in range(scores.shape[0])]
        return padded(
            [scores.indices[row][np.argsort(-scores.data[row], kind="stable")] for row in rows], k
        )

    def account(self) -> dict[str, Any]:
        self.model.save(str(self.folder))
        return {
            "model_bytes": tree_bytes(self.folder),
            "weights": sum(int(part.W.nnz) for part in self.model.model.model_chain),
        }


class Omikuji:
    """omikuji: its default of three trees, or one tree that is a single leaf with all labels.

    It always normalises rows.
    """

    def __init__(self, problem: Problem, tree: bool) -> None:
        import omikuji

        self.library = omikuji
        self.folder = problem.scratch / "omikuji"
        self.settings = omikuji.Model.default_hyper_param()
        self.settings.linear_c = problem.C
        self.settings.linear_weight_threshold = problem.prune
        if not tree:
            self.settings.n_trees = 1
            self.settings.min_branch_size = problem.Y.shape[1] + 1
        self.threads = omikuji._ThreadPoolHandle(1)
        path = omikuji.ffi.new("char[]", str(problem.folder / "train.txt").encode())
        self.data = omikuji.lib.load_omikuji_data_set(path, self.threads.ptr)

    def train(self) -> None:
        model = self.library.lib.train_omikuji_model(self.data, self.settings, self.threads.ptr)
        self.model = self.library.Model(model, self.threads)

    def top(self, X: Any, k: int) -> Any:
        cells = [slice(X.indptr[row], X.indptr[row + 1]) for row in range(X.shape[0])]
        pairs = (list(zip(X.indices[row].tolist(), X.data[row].tolist())) for row in cells)  # noqa: B905
        return padded(
            [[label for label, _ in self.model.predict(row, top_k=k)] for row in pairs], k
        )

    def account(self) -> dict[str, Any]:
        self.model.save(str(self.folder))
        return {"model_bytes": tree_bytes(self.folder)}


class Dismecpp:
    """DiSMEC++: its program `train`, one thread, bias not regularised, otherwise its defaults.

    The program reads a text file and writes a text file. What a run of one label uses is the time
    of these, and is subtracted.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.place = problem.scratch / "dismecpp"
        self.place.mkdir()

    def train(self) -> None:
        """Train all labels, after one label alone."""
        self.run("one", "--first-label", "0", "--num-labels", "1")
        self.one = child_seconds()
        self.run("all")
        self.train_cpu_s = max(0.0, child_seconds() - 2 * self.one)

    def run(self, name: str, *options: str) -> None:
        """Run the program; the model is written to files that begin with `name`."""
        problem = self.problem
        command = [
            str(problem.program),
            str(problem.folder / "train.txt"),
            str(self.place / name),
            "--augment-for-bias",
            "--threads=1",
            f"--reg-scale={1.0 / problem.C!r}",
            "--save-sparse-txt",
            f"--weight-culling={problem.prune!r}",
            *options,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.place)

    def weights(self) -> Any:
        """Return the weights (K, D + 1), the bias last, from files of `index:value` per label."""
        meta = json.loads((self.place / "all").read_text())
        shape = (self.problem.Y.shape[1], self.problem.X.shape[1] + 1)
        W = np.zeros(shape, np.float32)
        for part in meta["files"]:
            lines = (self.place / part["file"]).read_text().splitlines()
            for label, line in enumerate(lines, part["first"]):
                for cell in line.split():
                    feature, value = cell.split(":")
                    W[label, int(feature)] = float(value)
        return W

    def top(self, X: Any, k: int) -> Any:
        self.W = self.weights()
        parts = [
            best(X[at : at + 4096] @ self.W[:, :-1].T + self.W[:, -1], k)
            for at in range(0, X.shape[0], 4096)
        ]
        return np.concatenate(parts)

    def account(self) -> dict[str, Any]:
        used = int(np.count_nonzero(self.W))
        peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return {"model_bytes": tree_bytes(self.place), "weights": used, "peak_bytes": peak}


class RecallTree:
    """Vowpal Wabbit's recall_tree, which answers one label: rows with several are repeated.

    2^22 hashed weights and five passes over the rows in random order; otherwise its defaults. Its
    text file is read and written within the measured time.
    """

    def __init__(self, problem: Problem) -> None:
        self.X, self.Y, self.place = problem.X, problem.Y.tocsr(), problem.scratch
        self.rows = np.repeat(np.arange(self.Y.shape[0]), np.diff(self.Y.indptr))
        order = np.random.default_rng(0).permutation(len(self.rows))
        self.write("rows", self.X[self.rows[order]], self.Y.indices[order] + 1)

    def write(self, name: str, X: Any, labels: Any) -> None:
        """Write rows as text; labels begin with 1."""
        with (self.place / name).open("w") as out:
            for i, label in enumerate(labels):
                cells = slice(X.indptr[i], X.indptr[i + 1])
                pairs = zip(X.indices[cells].tolist(), X.data[cells].tolist())  # noqa: B905
                out.write(f"{label} |" + "".join(f" {j}:{x:.6g}" for j, x in pairs) + "\n")

    def run(self, *options: str) -> None:
        """Run Vowpal Wabbit in the scratch folder."""
        command = [sys.executable, "-m", "vowpalwabbit", "--quiet", *options]
        subprocess.run(command, check=True, cwd=self.place)

    def train(self) -> None:
        classes = str(self.Y.shape[1])
        passes = ("--passes", "5", "-c", "-k", "--holdout_off")
        self.run("-d", "rows", "-f", "model", "--recall_tree", classes, "-b", "22", *passes)
        self.train_cpu_s = child_seconds()

    def top(self, X: Any, k: int) -> Any:
        self.write("test", X, np.ones(X.shape[0], np.int64))
        self.run("-t", "-d", "test", "-i", "model", "-p", "best")
        best = np.loadtxt(self.place / "best", np.int64, ndmin=1) - 1
        return np.pad(best[:, None], ((0, 0), (0, k - 1)), constant_values=-1)

    def account(self) -> dict[str, Any]:
        peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return {"model_bytes": (self.place / "model").stat().st_size, "peak_bytes": peak}


PEERS = {
    "recall_tree": lambda problem: RecallTree(problem),
    "dismecpp": lambda problem: Dismecpp(problem),
    "liblinear": lambda problem: Liblinear(problem, 0.1),
    "sklearn": lambda problem: Liblinear(problem, None),
    "napkinxc_br": lambda problem: NapkinXC(problem, "BR"),
    "napkinxc_plt": lambda problem: NapkinXC(problem, "PLT"),
    "pecos_flat": lambda problem: Pecos(problem, tree=False),
    "pecos_tree": lambda problem: Pecos(problem, tree=True),
    "omikuji_flat": lambda problem: Omikuji(problem, tree=False),
    "omikuji_tree": lambda problem: Omikuji(problem, tree=True),
}


def best(scores: Any, k: int) -> Any:
    """Return (rows, k) columns of the largest scores, best first; -1 where there are fewer.

    Of equal scores the lower column comes first.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.pad(order, ((0, 0), (0, k - order.shape[1])), constant_values=-1)


def padded(rows: Any, k: int) -> Any:
    """Return lists of labels as one (rows, k) array; -1 where there are fewer."""
    out = np.full((len(rows), k), -1, np.int32)
    for row, labels in zip(out, rows):  # noqa: B905
        row[: len(labels)] = labels[:k]
    return out


def tree_bytes(folder: Path) -> int:
    """Return the bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def cpu_seconds() -> float:
    """Return the user and system time of this process so far, of all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def child_seconds() -> float:
    """Return the user and system time of the finished children of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory_bytes(name: str) -> int:
    """Return VmRSS (now) or VmHWM (peak) of this process; 0 without /proc."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def stay_on(core: int | None) -> None:
    """Run on one core only, if the system allows it."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def measured(peer: Peer) -> dict[str, Any]:
    """Train, and return the seconds and memory of the training.

    rest_bytes: resident before training, data and libraries.
    """
    rest, began, wall = memory_bytes("VmRSS"), cpu_seconds(), time.monotonic()
    peer.train()
    # a peer that is a program of its own counts the time of its processes
    seconds = getattr(peer, "train_cpu_s", cpu_seconds() - began)
    used = {"train_cpu_s": seconds, "train_wall_s": time.monotonic() - wall}
    return {**used, "rest_bytes": rest, "peak_bytes": memory_bytes("VmHWM")}


def main() -> None:
    """Run the task and print the result."""
    task = json.loads(Path(sys.argv[1]).read_text())
    stay_on(task["core"])
    peer = PEERS[task["peer"]](Problem(task))
    result = measured(peer)
    test = read_rows(task, "test_x.npz")
    began = cpu_seconds()
    np.save(task["top"], peer.top(test, task["k"]).astype(np.int32))
    print(json.dumps({**result, "predict_cpu_s": cpu_seconds() - began, **peer.account()}))


if __name__ == "__main__":
    main()
