"""Bounded memory: streamed files equal complete ones, merging and transposing stay in budget."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.flat_models import write_fields
from xcray.arrays import CSR, csr, frozen
from xcray.errors import Corrupt, ShapeMismatch
from xcray.index import packed
from xcray.index.packed import row_ranges
from xcray.kernels.sparse import transpose
from xcray.model.directory import Staging
from xcray.model.model import Model
from xcray.solvers.solved_labels import SolvedLabels, merge
from xcray.storage.arrow import MatrixWriter, read_csr, write_matrix
from xcray.training.block_store import BlockStore

RECORD = np.dtype(
    [("label", np.int32), ("positives", np.int32), ("rounds", np.int32), ("gap", np.float64)],
    align=True,
)
SHAPES = [(0, 0), (0, 4), (3, 0), (1, 1), (5, 40), (60, 7), (200, 300)]


def matrix(rng: np.random.Generator, n_rows: int, n_cols: int) -> CSR:
    """Return random rows, some of them empty, some full."""
    rows = [
        np.flatnonzero(rng.random(n_cols) < rng.choice([0.0, 0.05, 0.5, 1.0]))
        for _ in range(n_rows)
    ]
    indptr = np.cumsum([0, *map(len, rows)])
    return csr(indptr, np.concatenate([[], *rows]), rng.normal(size=indptr[-1]), n_cols)


def block(rng: np.random.Generator, labels: Any, W: CSR) -> SolvedLabels:
    """Return the block of some labels; weights, bias and record depend on the label only."""
    labels = np.asarray(labels, np.int32)
    rows = [W.row(int(label)) for label in labels]
    records = np.zeros(len(labels), RECORD)
    records["label"], records["gap"] = labels, labels / 7
    indptr = np.cumsum([0, *(len(row[0]) for row in rows)])
    own = csr(
        indptr,
        np.concatenate([[], *(r[0] for r in rows)]),
        np.concatenate([[], *(r[1] for r in rows)]),
        W.n_cols,
    )
    return SolvedLabels(frozen(labels, np.int32), own, frozen(-labels / 3, np.float64), records)


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_in_any_order_give_the_bytes_of_the_whole(
    tmp_path: Path, rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    X = matrix(rng, *shape)
    write_matrix(tmp_path / "whole.arrow", X)
    cuts = np.unique([0, *rng.integers(0, X.nnz + 1, 5), X.nnz])
    with MatrixWriter(tmp_path / "pieces.arrow", X.indptr, X.n_cols) as out:
        for i in rng.permutation(len(cuts) - 1):
            lo, hi = cuts[i], cuts[i + 1]
            out.write(int(lo), X.indices[lo:hi], X.data[lo:hi])
    assert (tmp_path / "pieces.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_matrix_with_a_gap_is_not_written(tmp_path: Path) -> None:
    with (
        pytest.raises(ShapeMismatch, match="3 entries, 1 were written"),
        MatrixWriter(tmp_path / "m", np.array([0, 3]), 9) as out,
    ):
        out.write(0, np.array([1], np.int32), np.ones(1, np.float32))
    with (
        pytest.raises(ShapeMismatch, match="do not lie"),
        MatrixWriter(tmp_path / "m", np.array([0, 3]), 9) as out,
    ):
        out.write(2, np.array([1, 2], np.int32), np.ones(2, np.float32))
    with (
        pytest.raises(RuntimeError, match="own"),
        MatrixWriter(tmp_path / "m", np.array([0, 0]), 9),
    ):
        raise RuntimeError("the writer's own trouble")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", [1, 8 * 13, 8 * 1000, 1 << 30])
def test_packed_lists_are_the_same_for_any_budget(
    tmp_path: Path, rng: np.random.Generator, shape: Any, budget: int
) -> None:
    W, b = matrix(rng, *shape), rng.normal(size=shape[0]).astype(np.float32)
    write_matrix(tmp_path / "w.arrow", W)
    packed.write_lists(tmp_path / "whole.arrow", W, b)
    ticks: list[int] = []
    packed.write_lists(
        tmp_path / "p.arrow",
        read_csr(tmp_path / "w.arrow"),
        b,
        budget,
        tick=lambda: ticks.append(1),
    )
    assert (tmp_path / "p.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()
    lists, order = packed.read_lists(tmp_path / "p.arrow", W)
    packed.check_lists(lists, W, order, "p.arrow")
    assert lists.blocks.tobytes() == packed.build_lists(W).blocks.tobytes()
    indptr = transpose(W).indptr
    results = list(row_ranges(indptr, budget // 8))
    assert [i for first, stop in results for i in range(first, stop)] == list(range(shape[1]))
    assert all(
        stop == first + 1 or indptr[stop] - indptr[first] <= budget // 8 for first, stop in results
    )
    assert len(ticks) == len(results)


def test_one_piece_of_packed_lists_is_in_memory_at_a_time(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Wide lists have 3 bytes per entry of 8: a budget of entries, and less than half on top."""
    n_labels, per_label, budget = 70_000, 60, 8 << 20
    columns = 50 * np.arange(per_label) + rng.integers(0, 50, (n_labels, per_label))
    values = rng.standard_normal(columns.size)
    W = csr(np.arange(n_labels + 1) * per_label, columns.ravel(), values, 50 * per_label)
    tracemalloc.start()
    packed.write_lists(tmp_path / "l.arrow", W, np.zeros(n_labels, np.float32), budget)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * budget


@pytest.mark.parametrize("seed", range(12))
def test_streamed_merge_is_the_merge_in_memory(tmp_path: Path, seed: int) -> None:
    """Random overlapping blocks, some damaged and solved again, give the same block."""
    rng = np.random.default_rng([4, seed])
    n_labels, n_features = int(rng.integers(1, 60)), int(rng.integers(1, 80))
    W = matrix(rng, n_labels, n_features)
    order = rng.permutation(n_labels)
    batches = [part for part in np.split(order, np.sort(rng.integers(0, n_labels, 5))) if len(part)]
    # Add overlapping batches.
    batches += [
        rng.choice(n_labels, rng.integers(1, n_labels + 1), replace=False) for _ in range(3)
    ]
    parts = BlockStore(tmp_path / "run", {"seed": seed}, n_labels=n_labels, n_features=n_features)
    blocks = [block(rng, batches[i], W) for i in rng.permutation(len(batches))]
    for each in blocks:
        parts.commit(each)
    files = sorted((tmp_path / "run").glob("part-*.arrow"))
    for victim in rng.choice(np.array(files, object), 2, replace=False) if len(files) > 2 else []:
        content = bytearray(victim.read_bytes())
        victim.write_bytes(bytes(content[: len(content) // 2]))
    # Another attempt finds the damaged parts, and solves the labels again that only they had.
    if seed % 2:
        parts = BlockStore(
            tmp_path / "run", {"seed": seed}, n_labels=n_labels, n_features=n_features
        )
        assert len(parts.damaged) == (2 if len(files) > 2 else 0)
        if len(parts.missing):
            parts.commit(block(rng, rng.permutation(parts.missing), W))
    else:
        for each in blocks:
            parts.commit(each)  # the same names, so the parts are complete again
    expected = merge(blocks, n_labels, n_features)
    for budget in (1, 8 * 20, 1 << 20):
        actual = parts.merge(tmp_path / "w.arrow", budget=budget)
        assert actual.digest() == expected.digest()
        assert actual.records.dtype == RECORD
        assert not actual.W.data.flags.owndata
        write_matrix(tmp_path / "whole.arrow", expected.W)
        assert (tmp_path / "w.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()
    assert parts.lengths.tolist() == np.diff(expected.W.indptr).tolist()


def test_missing_labels_are_named_or_marked(tmp_path: Path, rng: np.random.Generator) -> None:
    W = matrix(rng, 6, 9)
    parts = BlockStore(tmp_path / "run", {}, n_labels=6, n_features=9)
    counts = np.array([5, 4, 3, 2, 1, 9])
    empty = parts.merge(tmp_path / "none.arrow", allow_missing=True, positives=counts)
    assert (empty.W.nnz, empty.bias.tolist(), empty.records["rounds"].tolist()) == (
        0,
        [-1] * 6,
        [-1] * 6,
    )
    assert empty.records["positives"].tolist() == counts.tolist()
    parts.commit(block(rng, [4, 0, 2], W))
    with pytest.raises(ValueError, match="label 1 is in no part"):
        parts.merge(tmp_path / "w.arrow")
    actual = parts.merge(tmp_path / "w.arrow", allow_missing=True, positives=counts)
    whole = block(rng, range(6), W)
    for label in range(6):
        done = label in (0, 2, 4)
        assert actual.W.row(label)[0].tolist() == (W.row(label)[0].tolist() if done else [])
        assert actual.bias[label] == (whole.bias[label] if done else -1)
        assert actual.records[label]["rounds"] == (0 if done else -1)
        assert actual.records[label]["label"] == label
        assert actual.records[label]["positives"] == (0 if done else counts[label])
        assert actual.records[label]["gap"] == (whole.records[label]["gap"] if done else 0)


def test_a_part_changed_under_way_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    W = csr([0, 1, 3], [0, 0, 1], [1.0, 2.0, 3.0], 2)
    parts = BlockStore(tmp_path / "run", {}, n_labels=2, n_features=2)
    for label in (0, 1):
        parts.commit(block(rng, [label], W))
    one, other = sorted((tmp_path / "run").glob("part-*.arrow"))
    other.write_bytes(one.read_bytes())
    with pytest.raises(Corrupt, match="changed during the run"):
        parts.merge(tmp_path / "w.arrow")


def test_a_model_of_mapped_weights_is_the_model_of_those_in_memory(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    W = matrix(rng, 30, 50)
    write_matrix(tmp_path / "w.arrow", W)
    about: dict[str, Any] = {
        "b": np.arange(30),
        "label_names": [f"é{i}" for i in range(30)],
        "solver": "s",
        "params": {},
    }
    about |= {"feature_names": [str(i) for i in range(50)], "dataset_hash": "d"}
    whole, mapped = (
        write_fields(tmp_path / name, W=inputs, **about)
        for name, inputs in (("a", W), ("b", read_csr(tmp_path / "w.arrow")))
    )
    digests = [
        {name: entry["sha256"] for name, entry in m.manifest["files"].items() if name != "card.md"}
        for m in (whole, mapped)
    ]
    assert whole.sha256 == mapped.sha256
    assert digests[0] == digests[1]
    # The same hash as before weights were streamed.
    assert whole.sha256 == "f87efcdc8f3d790c8e1e5c9cd7cb4c23d9ca398cf00e106085fba028d43a6512"


KILLED = """
import os, sys
from pathlib import Path
from xcray.model.directory import Staging

with Staging(Path(sys.argv[1]) / "model", marker=Path(sys.argv[1]) / "staged") as staging:
    staging.weights.write_bytes(b"much")
    os._exit(9)
"""


def test_files_of_a_killed_merge_are_removed_by_the_next(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[2]
    )
    assert process.returncode == 9
    (left,) = tmp_path.glob(".model.*.part")
    assert (left / "weights.arrow").is_file()
    with Staging(tmp_path / "model", marker=tmp_path / "staged") as staging:
        assert not left.exists()
        assert staging.path.is_dir()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "staged").write_text(str(tmp_path / "mine"))
    with Staging(tmp_path / "model", marker=tmp_path / "staged"):
        assert (tmp_path / "mine").is_dir()  # not a staging directory, so it is not removed


LIMITED = """
import json, resource, sys, traceback
from pathlib import Path
from xcray.arrays import csr
from xcray.training.block_store import BlockStore
from xcray.storage.arrow import read_csr
from xcray.kernels.sparse import transpose
from xcray.model.directory import Staging
from xcray.model.write import ModelContent, TrainingRecord, write_model

folder, allowed, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def merged(run, model, budget, label_names, feature_names):
    parts = BlockStore(folder / run, {}, n_labels=len(label_names), n_features=len(feature_names))
    with Staging(folder / model, budget) as staging:
        block = parts.merge(staging.weights, budget=budget)
        search = staging.index(block.bias)
        content = ModelContent(search.W, search.b, label_names, feature_names)
        record = TrainingRecord("s", {}, "d")
        return write_model(folder / model, content, record, staged=staging).sha256


names = [str(i) for i in range(240)], [str(i) for i in range(40_000)]
# Warm up: load everything once before the limit is set.
merged("small", f"warm-{how}", 1 << 10, names[0][:12], names[1][:60])
transpose(csr([0, 1], [0], [1.0], 1))
status = open("/proc/self/status")
used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, used + allowed))
try:
    if how == "streamed":
        print(json.dumps(merged("run", "model", allowed // 6, *names)))
    else:
        W = read_csr(folder / "w.arrow")
        kept = csr(W.indptr.copy(), W.indices.copy(), W.data.copy(), W.n_cols)
        print(json.dumps(len(transpose(kept).indices)))
except MemoryError:
    traceback.print_exc()
    print(json.dumps("MemoryError"))
"""


def in_parts(
    folder: Path, rng: np.random.Generator, n_labels: int, n_features: int, each: int
) -> CSR:
    """Write weights as at most thirty parts of a run, labels in random order; `each` per label."""
    indices = [np.sort(rng.choice(n_features, each, replace=False)) for _ in range(3)]
    rows = [(indices[label % 3], rng.random(each, np.float32)) for label in range(n_labels)]
    W = csr(
        np.arange(n_labels + 1) * each,
        np.concatenate([r[0] for r in rows]),
        np.concatenate([r[1] for r in rows]),
        n_features,
    )
    parts = BlockStore(folder, {}, n_labels=n_labels, n_features=n_features)
    for labels in np.array_split(rng.permutation(n_labels), min(30, n_labels)):
        parts.commit(block(rng, labels, W))
    return W


def test_three_times_the_allowed_memory_is_merged_and_published(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """With 16 MiB, 50 MB of parts are merged to a model of 100 MB; in memory this must fail."""
    allowed, n_labels, n_features = 16 << 20, 240, 40_000
    W = in_parts(tmp_path / "run", rng, n_labels, n_features, 26_000)
    in_parts(tmp_path / "small", rng, 12, 60, 30)
    write_matrix(tmp_path / "w.arrow", W)
    assert 8 * W.nnz > 2.9 * allowed
    names = {
        "label_names": [str(i) for i in range(n_labels)],
        "feature_names": [str(i) for i in range(n_features)],
    }
    expected = write_fields(
        tmp_path / "expected",
        W=W,
        b=-np.arange(n_labels) / 3,
        solver="s",
        params={},
        dataset_hash="d",
        **names,
    ).sha256
    entries = {}
    for how in ("streamed", "in-memory"):
        # A thread that a library starts takes 1 MiB instead of 8.
        command = [
            "/bin/sh",
            "-c",
            'ulimit -S -s 1024; exec "$@"',
            "sh",
        ]
        command += [sys.executable, "-c", LIMITED, str(tmp_path), str(allowed), how]
        environment = {
            "PATH": "/usr/bin",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        assert process.returncode == 0, process.stderr
        entries[how] = json.loads(process.stdout)
        assert entries[how] == {"streamed": expected, "in-memory": "MemoryError"}[how], (
            process.stderr
        )
    assert Model.open(tmp_path / "model").nnz == W.nnz
