"""Trainings on several Ray nodes of one machine: equal models on 1, 2, 4 nodes, and node failures.

`python -m benchmarks.cluster.nodes [--data DIR --set bibtex|amazon] [--scale 0.1] [--parts same
kill add cut unseen mlr round drain] [--counts 1 2 4] [--eps 1e-3] [--epochs 8] [--repeats 1]
[--slow-health] [--small] [--plain] [--json FILE]` needs Linux, and takes about ten minutes for
pydocs on two free cores.

Nodes are separate raylets, each in its own namespaces (see `benchmarks.cluster.raylets`), with its
own processes, shared memory, temporary folder and network. The head has no CPU and runs the driver.
A node dies when all its processes are killed at once. Here Ray detects a silent node after two
seconds (--slow-health: after about 13 s, Ray's default).

- same: PPDSparse on 1, 2 and 4 nodes of one CPU each, and on threads. All have one SHA-256.
  Measured are the bytes that nodes send over the bridge.
- kill: one of two nodes dies at 40 %. The repeated work is the share of the batches that ran again
  in all work.
- add: a training on one node of one CPU wants more workers. First a node joins that can read the
  data, then, in a second run, one that cannot and gets the arrays through the object store.
  Measured are the seconds until their first batches begin, from the start of the raylet and from
  `ray start`.
- cut: the link of one of two nodes goes down, and comes up again after Ray has declared the node
  dead. Results that it sends later must be ignored.
- unseen: PPDSparse on two nodes of two CPUs that do not see the data, 180 MB of rows.
  Measured are the bytes in the object store of each node, where the rows fit and where not. With
  `--set amazon` the rows are those of its shape, and one of the nodes sees them.
- mlr: DS-MLR with block rotation on 1, 2 and 4 nodes with one grid. One SHA-256 for "sync" and
  "ring".
- round: one of two nodes dies during DS-MLR. The training returns to the last checkpoint (here one
  every two seconds) and continues at once on the remaining node.
- drain: one of two nodes is drained within 20 s during DS-MLR. The training leaves it with a
  checkpoint. Then a third node joins and gets shards.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.cluster.node_runs import Bench, Run
from benchmarks.cluster.raylets import Node, Nodes
from benchmarks.data.corpus import Shape, generate
from benchmarks.data.shapes import TASKS
from benchmarks.harness import dataset, machine
from tests.robustness.faults.stage import enter, namespaces, stage, until
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.workers.solver_task import shared_arrays
from xcray.workers.timeline import DONE, LOST

PARTS: Final = ("same", "kill", "add", "cut", "unseen", "mlr", "round", "drain")
STORES: Final = (512, 80)  # MiB of each object store, for rows that fit and that do not
WIDE: Final = Shape("wide", 400, 50_000, 150_000, 80, 1.5)
SMALL: Final = {"rows": 12_000, "features": 6000, "labels": 6000, "seed": 7}


def same(bench: Bench, how: str = "ppdsparse", part: str = "same") -> None:
    """Check that all numbers of nodes give the same hash."""
    bench.expected(how)
    with bench.ray() as ray:
        for count in bench.chosen.counts:
            while len(ray.others) < count:
                ray.add()
            before = total_bytes_sent(ray)
            run = bench.start(ray, f"{part}-{how}-{count}", how, count)
            figures = bench.judged(run, how)
            used = len({each["node"] for each in run.batches(DONE)})
            bench.record_row(
                part,
                how,
                nodes=count,
                nodes_used=used,
                sent_mb=(total_bytes_sent(ray) - before) / 1e6,
                **figures,
            )


def kill(
    bench: Bench, how: str = "ppdsparse", part: str = "kill", share: float = 0.4, **more: Any
) -> None:
    """Kill a node during the training."""
    for turn in range(bench.chosen.repeats):
        bench.expected(how)
        with bench.ray() as ray:
            pair = [ray.add(), ray.add()]
            victim, other = pair[turn % 2], pair[1 - turn % 2]
            run = bench.start(ray, f"{part}-{how}-{turn}", how, 2, together=True, **more)
            run.at(share)
            if bench.chosen.small:  # the rest of the training is short: both stop at once
                victim.hold()
                other.hold()
            when = victim.kill()
            given_up(bench, run, victim, other)
            figures = bench.judged(run, how)
            after_loss(bench, run, victim, when, part, how, figures)


def unseen(bench: Bench) -> None:
    """Train on nodes that get all rows through the object store; with amazon one sees the data."""
    bench.expected("ppdsparse")
    for store in STORES:
        with bench.ray(store) as ray:
            for hidden in (bench.chosen.set != "amazon", True):
                ray.add(cpus=2, hide=[bench.data.path] if hidden else [])
            before = total_bytes_sent(ray)
            run = bench.start(ray, f"unseen-{store}", "ppdsparse", 4, stores=True)
            figures = bench.judged(run, "ppdsparse")
            bench.record_row(
                "unseen",
                "ppdsparse",
                store_mib=store,
                rows_mb=sum(array.nbytes for array in _arrays(bench.data)) / 1e6,
                sent_mb=(total_bytes_sent(ray) - before) / 1e6,
                stores_mb={
                    node: [round(size / 1e6, 1) for size in sizes]
                    for node, sizes in run.store_peaks().items()
                },
                **figures,
            )


def _arrays(data: Dataset) -> list[np.ndarray]:
    """Return the arrays that the driver shares with nodes."""
    shared = shared_arrays(data)
    return [a for each in shared if each is not None for a in each if isinstance(a, np.ndarray)]


def given_up(bench: Bench, run: Run, victim: Node, other: Node) -> None:
    """Wait until Ray declares a node dead, or the training has ended.

    With --small, the other node is paused meanwhile, because the training would end before.
    """
    state = bench.chosen.small and other.hold() > 0
    until(
        lambda: (
            victim.address not in run.progress().get("nodes", {}) or run.process.poll() is not None
        ),
        "the node is given up",
        240,
    )
    if state:
        other.hold(signal.SIGCONT)


def after_loss(
    bench: Bench,
    run: Run,
    victim: Node,
    when: float,
    part: str,
    how: str,
    figures: Mapping[str, Any],
    **more: Any,
) -> None:
    """Record the row of a run that lost a node at `when`."""
    noticed = (
        each["at"]
        for each in run.history
        if each["at"] > when and victim.address not in each.get("nodes", [victim.address])
    )
    values = next(noticed, None)
    lost, done = run.batches(LOST), run.batches(DONE)
    mine = [each for each in lost if each["node"] == victim.address or how != "ppdsparse"]
    report = max((each["to"] for each in mine), default=None)
    again = [
        each for each in done if each["from"] > when and (each["attempt"] > 1 or how != "ppdsparse")
    ]
    others = [each for each in done if each["node"] != victim.address and each["from"] > when]
    late = [
        each
        for each in done
        if each["node"] == victim.address and report is not None and each["to"] > report
    ]
    moments = sorted([when, *(each["from"] for each in done if each["from"] > when)])
    bench.record_row(
        part,
        how,
        ray_noticed_seconds=None if values is None else values - when,
        driver_noticed_seconds=None if report is None else report - when,
        others_go_on_seconds=others[0]["from"] - when if others else None,
        lost_work_goes_on_seconds=again[0]["from"] - when if again else None,
        stood_still_seconds=max(
            (after - before for before, after in pairwise(moments)), default=None
        ),
        zombie_results_accepted=len(late),
        **figures,
        **more,
        chart=bench.chart(run, gone=when),
    )


def add(bench: Bench) -> None:
    """Add nodes while a training wants more workers: with and without access to the data."""
    bench.expected("ppdsparse")
    unseen = (bench.data.path,)
    for hide in ((),) if not namespaces() else (unseen,) if bench.chosen.small else ((), unseen):
        with bench.ray() as ray:
            first = ray.add()
            run = bench.start(ray, f"add-{len(hide)}", "ppdsparse", 2)
            run.at(0.15)
            if (
                bench.chosen.small
            ):  # pause it: the small training would end before the new node is up
                assert first.hold(), "no worker is running"
            before, done = total_bytes_sent(ray), run.progress()["done"]
            node = ray.add(hide=hide)
            if bench.chosen.small:
                until(
                    lambda run=run, done=done: run.progress()["done"] > done + 100,
                    "the new node works",
                    240,
                )
                first.hold(signal.SIGCONT)
            figures = bench.judged(run, "ppdsparse")
            up = run.first_look(lambda there, node=node: node.address in there)
            begun = next(
                (each["from"] for each in run.batches(DONE) if each["node"] == node.address), None
            )
            assert up is not None, (
                "the new node never came up while the training ran: give it more work"
            )
            bench.record_row(
                "add",
                "ppdsparse",
                sees_data=not hide,
                up_to_first_batch_seconds=None if begun is None else begun - up,
                start_to_first_batch_seconds=None if begun is None else begun - node.requested_at,
                batches_of_the_new_node=sum(
                    each["node"] == node.address for each in run.batches(DONE)
                ),
                sent_mb=(total_bytes_sent(ray) - before) / 1e6,
                **figures,
                chart=bench.chart(run, started=node.requested_at, up=up),
            )


def cut(bench: Bench) -> None:
    """Cut a node off, and reconnect it after Ray has declared it dead."""
    if not namespaces():
        bench.record_row(
            "cut", "ppdsparse", not_played="nodes have no separate networks on this machine"
        )
        return
    bench.expected("ppdsparse")
    with bench.ray() as ray:
        victim, other = ray.add(), ray.add()
        run = bench.start(ray, "cut", "ppdsparse", 2)
        run.at(0.25)
        when = victim.cut()
        given_up(bench, run, victim, other)
        healed = victim.heal()
        figures = bench.judged(run, "ppdsparse")
        time.sleep(1.0)
        fields = {"healed_after_seconds": healed - when, "its_raylet_ended": not victim.alive}
        after_loss(bench, run, victim, when, "cut", "ppdsparse", figures, **fields)


def mlr(bench: Bench) -> None:
    """Run DS-MLR on all numbers of nodes."""
    for how in ("sync", "ring"):
        same(bench, how, "mlr")


def rounds(bench: Bench) -> None:
    """Kill a node during DS-MLR."""
    for how in ("sync", "ring"):
        kill(bench, how, "round kill", 0.3, checkpoint_seconds=2.0)


def drain(bench: Bench, how: str = "ring") -> None:
    """Drain a node during DS-MLR, then add another."""
    bench.expected(how)
    with bench.ray() as ray:
        pair = [ray.add(), ray.add()]
        run = bench.start(ray, "drain", how, 2)
        run.at(0.2)
        ray.head.drain(run.progress()["nodes"][pair[0].address], 20)
        when = time.time()
        until(
            lambda: any("left before" in each.get("note", "") for each in run.history) or run.over,
            "the node is left",
            240,
        )
        left, third = time.time(), ray.add()
        until(
            lambda: any(" came" in each.get("note", "") for each in run.history) or run.over,
            "the node that came is used",
            240,
        )
        came = time.time()
        assert any("left before" in each.get("note", "") for each in run.history), (
            "it ended too early: give it more --epochs"
        )
        pair[0].kill()
        figures = bench.judged(run, how)
        late = [
            each
            for each in run.batches(DONE)
            if each["node"] == pair[0].address and each["from"] > left
        ]
        new = [each for each in run.batches(DONE) if each["node"] == third.address]
        bench.record_row(
            "drain",
            how,
            left_after_seconds=left - when,
            came_after_seconds=came - third.requested_at,
            batches_of_the_new_node=len(new),
            zombie_results_accepted=len(late),
            **figures,
            chart=bench.chart(run, gone=when, started=third.requested_at),
        )


def total_bytes_sent(ray: Nodes) -> int:
    """Return the bytes that all nodes have sent over the bridge, or 0 without one."""
    return (
        sum(node.bytes_sent() for node in (ray.head, *ray.others) if node.alive)
        if namespaces()
        else 0
    )


def verdict(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Return the checks over all rows that have the figure. Seconds are reported, not judged."""
    return {
        "same_sha256": all(row.get("same_sha256", True) for row in rows),
        "nothing_lost": all(row.get("lost_labels", 0) == 0 for row in rows),
        "nothing_twice": all(row.get("doubled_labels", 0) == 0 for row in rows),
        "no_zombie_accepted": all(row.get("zombie_results_accepted", 0) == 0 for row in rows),
        "all_nodes_used": all(row.get("nodes_used", 0) == row.get("nodes", 0) for row in rows),
        "added_nodes_worked": all(row.get("batches_of_the_new_node", 1) > 0 for row in rows),
    }


def chosen_of(values: list[str]) -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster.nodes", description=__doc__)
    parser.add_argument(
        "--data", type=Path, help="directory of data sets, each with train.txt.xz and test.txt.xz"
    )
    parser.add_argument(
        "--set",
        default="pydocs",
        help="the set of --data to train on; pydocs and amazon are generated, the latter with the "
        "shape of Amazon-670K",
    )
    parser.add_argument("--scale", type=float, default=0.1, help="share of the labels of amazon")
    parser.add_argument(
        "--mlr-set",
        help="the set for part mlr, whose weights are dense; generated by default",
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 4], help="numbers of nodes")
    parser.add_argument(
        "--eps", type=float, default=1e-3, help="of PPDSparse; a smaller value means more work"
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="number of runs of kill, one node each"
    )
    parser.add_argument("--epochs", type=int, default=8, help="of DS-MLR")
    parser.add_argument("--store", type=int, default=80, help="MiB of a node's object store")
    parser.add_argument(
        "--slow-health", action="store_true", help="use Ray's timeout for silent nodes"
    )
    parser.add_argument("--small", action="store_true", help="use the small data of the test suite")
    parser.add_argument(
        "--plain", action="store_true", help="do not use namespaces, even if available"
    )
    parser.add_argument(
        "--json", type=lambda text: Path(text).absolute(), help="also write the result to this file"
    )
    return parser.parse_args(values)


def main(values: list[str]) -> int:
    """Run the chosen parts and return the exit status, 0 if all checks hold."""
    chosen = chosen_of(values)
    enter(values, chosen.plain, module="benchmarks.cluster.nodes")
    before = machine()
    with stage("nodes", "several nodes", runs=1, seed=0) as set:
        rows = []
        for names, name in (
            (("same", "kill", "add", "cut"), chosen.set),
            (("unseen",), "amazon" if chosen.set == "amazon" else "wide"),
            (("mlr", "round", "drain"), chosen.mlr_set or "narrow"),
        ):
            parts = [part for part in chosen.parts if part in names]
            if parts:
                bench = Bench(set, data_of(name, chosen, set.folder), chosen)
                for part in parts:
                    {
                        "same": same,
                        "kill": kill,
                        "add": add,
                        "cut": cut,
                        "unseen": unseen,
                        "mlr": mlr,
                        "round": rounds,
                        "drain": drain,
                    }[part](bench)
                rows += bench.rows
    output = verdict(rows)
    kind = os.environ.get("FAULTS_INSIDE", "")
    result = {"benchmark": "nodes", "machine": before, "nodes": kind, "holds": output, "rows": rows}
    text = json.dumps(result, sort_keys=True)
    if chosen.json is not None:
        chosen.json.write_text(text + "\n")
    print(text)
    return 0 if all(output.values()) else 1


def data_of(name: str, chosen: argparse.Namespace, folder: Path) -> Dataset:
    """Return a data set by name; "narrow" and small ones are generated."""
    if name == "narrow":
        sizes = {"rows": 3000, "features": 500, "labels": 200, "seed": 7}
        return build(
            "synthetic",
            {},
            folder / "narrow",
            BuildOptions.from_dict({"test_fraction": 0.2, "synthetic": sizes}),
        )
    if name in ("wide", "amazon"):
        shape = WIDE if name == "wide" else TASKS["amazon"].shape.scaled(chosen.scale)
        made = (folder / name).exists()  # the parts before have the same data
        return Dataset.open(folder / name) if made else generate(shape, folder / name)
    if chosen.small:
        return build(
            "synthetic",
            {},
            folder / "small",
            BuildOptions.from_dict({"test_fraction": 0.2, "synthetic": SMALL}),
        )
    data = None if chosen.data is None else chosen.data.absolute()
    return dataset(name, data, folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
