"""Preflight estimates: formulas compared with real solvers, system limits, and refusals."""

from __future__ import annotations

import json
import resource
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from xcray.arrays import Int32, csr, frozen
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.errors import ParameterError, Refused
from xcray.index.packed import BUFFER_BYTES
from xcray.model.model import Model
from xcray.solvers import SOLVERS, make_solver
from xcray.solvers.ppdsparse import PPDSparseSolver
from xcray.solvers.solved_labels import SolvedLabels
from xcray.storage.arrow import read_table, write_table
from xcray.system import memory
from xcray.system.units import format_bytes, parse_bytes
from xcray.training import TrainSpec, train
from xcray.training.block_store import BlockStore
from xcray.training.capacity import monitor, preflight
from xcray.training.capacity.label_probe import LabelWork, fit_costs, run_probe
from xcray.training.capacity.monitor import ResourceMonitor
from xcray.training.capacity.preflight import check_fits, estimate, memory_limits, merge_budget
from xcray.training.capacity.worker_memory import entries_per_label, worker_bytes
from xcray.training.label_groups.data import GROUP_EPS
from xcray.training.strategies import estimate_training

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Return a data set large enough for a meaningful estimate."""
    options = {
        "test_fraction": 0.1,
        "synthetic": {"rows": 3000, "features": 2500, "labels": 300, "seed": 3},
    }
    return build(
        "synthetic", {}, tmp_path_factory.mktemp("middle") / "data", BuildOptions.from_dict(options)
    )


def spec(dataset: Dataset, **changes: Any) -> TrainSpec:
    """Return the specification of a serial training of `dataset`, with changes."""
    return TrainSpec(**{"dataset": str(dataset.path), "pool": "serial", **changes})


def array_bytes(value: Any, values: set[int]) -> int:
    """Return the bytes of all arrays in nested tuples and objects.

    Arrays whose data lie at an address in `values` are not counted; those of the others are added.
    """
    if isinstance(value, np.ndarray):
        address = value.__array_interface__["data"][0]
        size = 0 if address in values else value.nbytes
        values.add(address)
        return size
    if isinstance(value, tuple):
        return sum(array_bytes(each, values) for each in value)
    return (
        sum(array_bytes(each, values) for each in vars(value).values())
        if hasattr(value, "__dict__")
        else 0
    )


@pytest.mark.parametrize(
    "name", sorted(name for name in SOLVERS if SOLVERS[name].family == "independent")
)
def test_a_worker_holds_the_estimated_bytes(middle: Dataset, name: str) -> None:
    """The formula, fitted on synthetic problems, matches the arrays of a real worker."""
    solver, train_part = make_solver(name, {}), middle.train
    values = {
        a.__array_interface__["data"][0]
        for m in (train_part.X, train_part.XT, train_part.YT)
        for a in m[:-1]
    }
    local = solver.load(train_part.X, train_part.XT, train_part.YT)
    foreseen, reserved = worker_bytes(solver, train_part, 0)
    foreseen -= solver.task_needs(train_part.X).n_bytes
    assert foreseen + reserved == pytest.approx(array_bytes(local, values), rel=0.05, abs=1 << 17)
    sizes = train_part.X.n_rows + middle.n_features + middle.n_labels
    assert foreseen < 200 * sizes + (1 << 20)  # O(N + D), independent of the entries of X


def test_entries_of_labels_are_counted(middle: Dataset) -> None:
    X, Y = middle.train.X.to_scipy(), middle.train.Y.to_scipy()
    expected = (Y.T @ np.diff(X.indptr)).astype(float)
    assert entries_per_label(middle.train).tolist() == expected.tolist()


def test_a_probe_estimates_the_weights(middle: Dataset, tmp_path: Path) -> None:
    """Weights, model and parts are estimated within 40 %, and the report compares all figures."""
    # A long limit, because a short probe would end too early on a slow machine.
    result = estimate_training(spec(middle), probe_seconds=600.0)
    assert result.probed >= 20
    report = train(spec(middle), run_dir=tmp_path / "run", out=tmp_path / "model").report
    estimated, compared = report["preflight"]["estimate"], report["preflight"]["compared"]
    model = Model.open(tmp_path / "model")
    assert compared["weights"]["actual"] == model.nnz
    assert result.weights == pytest.approx(model.nnz, rel=0.35)
    assert result.model == pytest.approx(model.n_bytes, rel=0.4)
    assert result.parts == pytest.approx(compared["parts"]["actual"], rel=0.4)
    assert {"weights", "model", "parts", "seconds", "core_seconds", "memory"} <= set(compared)
    assert all(row["estimated"] == estimated[name] for name, row in compared.items())
    assert compared["parts"]["actual"] == sum(
        p.stat().st_size for p in (tmp_path / "run").glob("part-*.arrow")
    )
    assert (
        report["preflight"]["driver"]["anonymous_peak"]
        >= report["preflight"]["driver"]["anonymous_before"]
    )
    json.dumps(report)


def test_finished_labels_are_not_estimated_again(middle: Dataset) -> None:
    solver = make_solver("ppdsparse", {})
    whole, rest = (
        estimate(
            spec(middle),
            middle,
            solver,
            frozen(np.arange(n), np.int32),
            workers=1,
            probe_seconds=0.0,
        )
        for n in (middle.n_labels, 10)
    )
    assert (whole.weights, whole.model) == (rest.weights, rest.model)
    assert rest.parts < whole.parts / 5
    assert rest.core_seconds < whole.core_seconds
    assert whole.probed == 0


def test_places_of_workers(middle: Dataset) -> None:
    def of(**changes: Any) -> preflight.Estimate:
        solver = make_solver("ppdsparse", {})
        return estimate(
            spec(middle, **changes),
            middle,
            solver,
            frozen([0], np.int32),
            workers=3,
            probe_seconds=0.0,
        )

    here, own, next_to, away = (
        of(pool="threads"),
        of(pool="ray"),
        of(pool="ray", ray_address="127.0.0.1:6379"),
        of(pool="ray", ray_address="ray://head.example:10001"),
    )
    assert [e.place for e in (here, own, next_to, away)] == [
        "thread",
        "process",
        "process",
        "cluster",
    ]
    assert here.memory == here.driver + 3 * here.worker
    assert own.driver == here.driver + preflight.RAY_DRIVER_BYTES
    assert (
        own.memory == own.driver + 3 * (own.worker + preflight.PROCESS_BYTES) + preflight.RAY_BYTES
    )
    assert next_to.memory == own.memory - preflight.RAY_BYTES
    assert away.memory == away.driver


def test_too_little_memory_is_refused_with_figures(middle: Dataset, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="memory_limit leaves 0 bytes: use fewer workers") as caught:
        train(spec(middle, memory_limit="1MB"), run_dir=tmp_path / "run", out=tmp_path / "model")
    assert caught.value.code == "MEMORY"
    assert caught.value.details["needed"] > caught.value.details["available"] == 0
    assert not (tmp_path / "model").exists()
    words = str(caught.value.hint).split()
    assert "that this process has already: set it to at least" in str(caught.value.hint)
    enough = "".join(words[-2:])
    result = train(
        spec(middle, memory_limit=enough), run_dir=tmp_path / "run", out=tmp_path / "model"
    )
    assert Model.open(tmp_path / "model").sha256 == result.sha256


def test_a_limit_of_address_space_counts_what_is_only_reserved(
    middle: Dataset, tmp_path: Path
) -> None:
    result = estimate_training(spec(middle), probe_seconds=0.0)._replace(
        reserved=10**9, mapped=10**8
    )
    for limit, expected in (
        ("machine", 0),
        ("cgroup", 0),
        ("RLIMIT_DATA", 10**9),
        ("RLIMIT_AS", 10**9 + 10**8),
    ):
        check_fits(result, {limit: result.memory + expected}, tmp_path, tmp_path)
        with pytest.raises(Refused, match=limit):
            check_fits(result, {limit: result.memory + expected - 1}, tmp_path, tmp_path)


def test_too_little_disk_is_refused_before_and_during_the_training(
    middle: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = estimate_training(spec(middle), probe_seconds=0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, result.disk))
    check_fits(result, {}, tmp_path / "run" / "deep", tmp_path / "model")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, result.disk - 1))
    with pytest.raises(
        Refused, match="free some space, choose another disk, or make the model smaller"
    ) as caught:
        check_fits(result, {}, tmp_path / "run" / "deep", tmp_path / "model")
    assert caught.value.code == "DISK"
    assert caught.value.details == {"needed": result.disk, "available": result.disk - 1}


def test_the_needed_disk_follows_the_weights_of_finished_labels(
    middle: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half of the labels done, the other half is expected to have as many weights."""
    K, D = middle.n_labels, middle.n_features
    parts = BlockStore(tmp_path / "run", {}, n_labels=K, n_features=D)
    labels = frozen(np.arange(0, K, 2), np.int32)
    rows = frozen(np.tile(np.arange(D), len(labels)), np.int32)
    W = csr(np.arange(len(labels) + 1) * D, rows, np.ones(len(rows)), D)
    result = estimate_training(spec(middle), probe_seconds=0.0)
    watched = ResourceMonitor(result, np.ones(K), parts, tmp_path / "run", tmp_path / "model")
    monkeypatch.setattr(monitor, "POLL_SECONDS", -1.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1000))
    watched.poll()  # no label is finished yet
    parts.commit(
        SolvedLabels(
            labels,
            W,
            frozen(np.zeros(len(labels)), np.float64),
            np.zeros(len(labels), [("label", np.int32)]),
        )
    )
    expected = (
        8 * D * K / 2
        + 16 * D * K
        + preflight.PART_BYTES_PER_LABEL * K / 2
        + preflight.MODEL_BYTES_PER_LABEL * K
    )
    with pytest.raises(
        Refused, match=f"by the {D * K // 2:,} weights of {K // 2} finished labels"
    ) as caught:
        watched.poll()
    assert caught.value.details["needed"] == pytest.approx(expected, rel=1e-6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, int(expected) + 1000))
    watched.poll()


def test_merging_keeps_within_what_is_left(
    middle: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "available_bytes", lambda: {"machine": 1 << 40})
    assert merge_budget(spec(middle)) == BUFFER_BYTES
    assert merge_budget(spec(middle), 10**10) == 8 * 10**10 // preflight.MAX_MERGE_PASSES
    monkeypatch.setattr(
        preflight, "available_bytes", lambda: {"machine": 1 << 40, "cgroup": 100 << 20}
    )
    assert merge_budget(spec(middle), 10**10) == (100 << 20) // 8
    monkeypatch.setattr(preflight, "available_bytes", lambda: {"machine": 0})
    assert merge_budget(spec(middle)) == 4 << 20
    monkeypatch.setattr(preflight, "available_bytes", dict)
    assert merge_budget(spec(middle)) == BUFFER_BYTES


def system(folder: Path, files: dict[str, str]) -> Path:
    """Write simulated /proc and /sys/fs/cgroup files and return their folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


MEMINFO = {"proc/meminfo": "MemTotal: 999999 kB\nMemAvailable:  5000 kB\nHugePages_Total: 0\n"}


@pytest.mark.parametrize(
    ("files", "cgroup"),
    [
        ({}, None),
        (
            {"proc/self/cgroup": "0::/\n", "cg/memory.max": "max\n", "cg/memory.current": "1000\n"},
            None,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "cg/a/memory.max": "9000\n",
                "cg/a/memory.current": "2000\n",
            },
            7000,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "cg/a/memory.max": "9000\n",
                "cg/a/memory.current": "2000\n",
                "cg/a/b/memory.max": "4000\n",
                "cg/a/b/memory.current": "3900\n",
                "cg/a/b/memory.stat": "inactive_file 700\n",
            },
            800,
        ),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "cg/a/memory.max": "100\n",
                "cg/a/memory.current": "2000\n",
            },
            0,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,memory:/job\n4:pids:/x\n",
                "cg/memory/job/memory.limit_in_bytes": "6000\n",
                "cg/memory/job/memory.usage_in_bytes": "1000\n",
                "cg/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cg/memory/memory.usage_in_bytes": "1\n",
            },
            5000,
        ),
    ],
)
def test_limits_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cgroup: int | None
) -> None:
    system(tmp_path, {**MEMINFO, **files})
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cg")
    monkeypatch.setattr(
        memory.resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    assert memory.available_bytes() == {
        "machine": 5000 << 10,
        **({} if cgroup is None else {"cgroup": cgroup}),
    }


def test_limits_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system(
        tmp_path,
        {
            **MEMINFO,
            "proc/self/status": "Name:\tpython\nVmSize:\t 3000 kB\nVmData:\t 1000 kB\nRssAnon:\t 600 kB\n",
        },
    )
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cg")
    monkeypatch.setattr(
        memory.resource, "getrlimit", lambda which: (4000 << 10, resource.RLIM_INFINITY)
    )
    assert memory.available_bytes() == {
        "machine": 5000 << 10,
        "RLIMIT_AS": 1000 << 10,
        "RLIMIT_DATA": 3000 << 10,
    }
    assert memory.anonymous_bytes() == 600 << 10


def test_without_proc_something_is_known_or_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PROC", tmp_path / "no")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "no")
    monkeypatch.setattr(
        memory.resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    assert set(memory.available_bytes()) <= {"machine"}
    monkeypatch.setattr(memory.os, "sysconf_names", {})
    assert memory.available_bytes() == {}
    assert memory.anonymous_bytes() is None


def test_footprint_of_this_process() -> None:
    before = memory.anonymous_bytes()
    selection = np.ones(8 << 20)  # 64 MiB, more than an allocator keeps of freed memory
    after = memory.anonymous_bytes()
    assert before is not None
    assert after is not None
    assert after - before >= 0.9 * selection.nbytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4GiB", 4 << 30),
        (" 500 MB ", 500 * 10**6),
        ("1.5gib", 3 << 29),
        ("2e9", 2 * 10**9),
        ("64 kib", 64 << 10),
    ],
)
def test_amounts_of_memory(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-4GB", "4 parsecs", "nan", "0", 0, -1, True, "1e99", "4GiB; rm"]
)
def test_invalid_amounts_of_memory(text: Any) -> None:
    with pytest.raises(ParameterError, match="not a valid size: write bytes"):
        TrainSpec("d", memory_limit=text)


def test_sizes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 10 << 20, 150 << 20, 3 << 40, 1 << 60)] == [
        *("0 bytes", "1023 bytes", "1.5 KiB", "10.0 MiB", "150 MiB", "3.0 TiB", "1048576 TiB")
    ]


def test_the_command_line_estimates_and_refuses(
    middle: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = f"train {middle.path} --estimate --out {tmp_path}/m --pool serial".split()
    assert main([*requests, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == 1
    assert main(requests) == 0
    assert "available memory" in capsys.readouterr().out
    assert main([*requests, "--memory-limit", "1MB"]) == 1
    assert "error MEMORY" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_limits_of_a_spec(middle: Dataset) -> None:
    limits = memory_limits(spec(middle, memory_limit="100GiB"))
    assert 90 << 30 < limits["memory_limit"] < 100 << 30
    assert "memory_limit" not in memory_limits(spec(middle))


def test_a_label_without_end_ends_the_probe(middle: Dataset) -> None:
    endless = {"loss": "hinge", "eps": 1e-300, "C": 1e9, "tau": 1e-6, "max_sweeps": 2**31 - 1}
    solver = make_solver("ppdsparse", endless)
    label = frozen(np.array([int(middle.label_counts.argmax())]), np.int32)
    work = LabelWork(label, frozen(np.array([1e-3]), np.float64), frozen(np.ones(1), np.float64))
    rates = run_probe(solver, middle, work, 0.01)
    assert rates.probed == 1
    assert rates.time_ratio >= 1000.0  # at least a second instead of a thousandth
    assert rates.weight_ratio == 1.0  # its weights are not known


def mapped_bytes() -> int:
    """Return the resident bytes of mapped files of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssFile:")[1].split()[0]) << 10


def test_pages_of_mapped_files_are_released_and_read_again(tmp_path: Path) -> None:
    write_table(tmp_path / "a.arrow", pa.table({"x": np.arange(4 << 20)}))  # 32 MiB
    values = read_table(tmp_path / "a.arrow").column("x").to_numpy()
    total = int(values.sum())
    before = mapped_bytes()
    memory.release_mapped_files(".other", 0)
    memory.release_mapped_files(".arrow", 1 << 40)  # below the limit
    unchanged = mapped_bytes()
    memory.release_mapped_files(".arrow", 0)
    after = mapped_bytes()
    assert before - unchanged < 4 << 20
    assert unchanged - after > 28 << 20
    assert int(values.sum()) == total


def test_a_probe_solves_labels_in_batches(middle: Dataset) -> None:
    """Single calls have a cost of their own, which a training does not pay for each label."""
    solver = make_solver("ppdsparse", {})
    sizes, solve = list[int](), solver.solve

    def count(state: object, labels: Int32, *rest: object) -> object:
        sizes.append(len(labels))
        return solve(state, labels, *rest)

    labels = frozen(np.arange(30), np.int32)
    costs = frozen(np.full(30, 1e-9), np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(solver), "solve", lambda _, *args: count(*args))
        rates = run_probe(solver, middle, LabelWork(labels, costs, costs), 100.0)
    assert (rates.probed, sizes) == (30, [1, 10, 10, 10])


def test_labels_that_take_equally_long_are_not_estimated_by_their_rows() -> None:
    """A label with a third of the expected work was taken to need a third of the time."""
    expected = np.array([1.0, 2.0, 3.0, 6.0])
    calls = np.column_stack([np.ones(4), expected, np.full(4, 5.0)])
    assert fit_costs(calls) == (0.0, 5.0)
    calls[:, 2] = 2.0 + 0.5 * expected
    assert fit_costs(calls) == pytest.approx((0.5, 2.0))
    calls[:, 2] = 0.5 * expected - 0.25  # no time per label is negative
    assert fit_costs(calls) == pytest.approx((5.0 / 12.0, 0.0))


def test_estimate_solves_groups_to_their_gap(middle: Dataset) -> None:
    seen, solve = dict[int, float](), PPDSparseSolver.solve

    def record(solver: PPDSparseSolver, state: object, labels: Int32, *rest: object) -> object:
        seen.update(dict.fromkeys(labels.tolist(), solver.eps))
        return solve(solver, state, labels, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PPDSparseSolver, "solve", record)
        estimate_training(spec(middle, groups="5"), probe_seconds=100.0)
    by_kind = {label >= middle.n_labels: eps for label, eps in seen.items()}
    assert by_kind == {False: PPDSparseSolver().eps, True: GROUP_EPS}
