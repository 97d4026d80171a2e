"""Core-seconds and P@1/3/5 of xcray and other programs.

They are LIBLINEAR, napkinXC, PECOS, omikuji, Vowpal Wabbit's recall_tree and DiSMEC++.

`python -m benchmarks.peers --data DIR [--sets bibtex cooking ...] [--peers xcray liblinear ...]
[--cache DIR] [--env DIR]`

All programs read the same rows, run on one core with one thread and minimise the squared hinge loss
with the same C. All other parameters are defaults. Only the CPU seconds of training count. Runs are
interleaved; medians, and ratios within a round, are reported. One-vs-rest over tens of thousands of
labels takes hours, so on the sets in --samples the one-vs-rest peers train a sample of labels
stratified by frequency. Their time per label is that of the sample. Their answers are compared on
the test rows that have a label of the sample, with only the labels of the sample as candidates, for
xcray too. Trees and xcray train all labels. --cache keeps data, runs and answers; --again NAMES
repeats these runs. --dismecpp is the path of the program `train` of DiSMEC++, built elsewhere.
recall_tree answers one label.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import dataset, run_benchmark
from benchmarks.peers.data import measures_all, measures_sample, sample, write_folder
from benchmarks.peers.environment import environment, versions
from benchmarks.peers.report import table
from benchmarks.peers.run import cached, default_core
from xcray.data.dataset import Dataset


class PeerSpec(NamedTuple):
    """A row of the table: title, required package, and whether it trains all labels.

    whole: trains all labels even where one-vs-rest peers train a sample. This holds for trees and
    for xcray, except `xcray_sample`, which is compared on a sample alone.
    """

    title: str
    package: str
    whole: bool = False
    tree: bool = False
    params: dict[str, Any] = {}  # noqa: RUF012


PEERS_BY_NAME = {
    "xcray": PeerSpec("xcray PPDSparse (lam 0.01)", "xcray", whole=True),
    "xcray_l2": PeerSpec("xcray PPDSparse (lam 0)", "xcray", whole=True, params={"lam": 0.0}),
    "xcray_sample": PeerSpec("xcray PPDSparse (lam 0.01), the sample alone", "xcray"),
    "xcray_sample_l2": PeerSpec(
        "xcray PPDSparse (lam 0), the sample alone", "xcray", params={"lam": 0.0}
    ),
    "xcray_sample_tight": PeerSpec(
        "xcray PPDSparse (lam 0.01, eps 0.001), the sample alone", "xcray", params={"eps": 0.001}
    ),
    "liblinear": PeerSpec("LIBLINEAR dual, tol 0.1 (scikit-learn)", "sklearn"),
    "sklearn": PeerSpec("LinearSVC, its defaults (scikit-learn)", "sklearn"),
    "napkinxc_br": PeerSpec("napkinXC BR", "napkinxc"),
    "pecos_flat": PeerSpec("PECOS XR-Linear, no tree", "pecos"),
    "omikuji_flat": PeerSpec("omikuji, one leaf, no tree (normalises rows)", "omikuji"),
    "napkinxc_plt": PeerSpec(
        "napkinXC PLT (tree, normalises rows)", "napkinxc", whole=True, tree=True
    ),
    "pecos_tree": PeerSpec("PECOS XR-Linear (tree)", "pecos", whole=True, tree=True),
    "omikuji_tree": PeerSpec("omikuji, 3 trees (normalise rows)", "omikuji", whole=True, tree=True),
    "dismecpp": PeerSpec("DiSMEC++ (bias not regularised)", "dismecpp"),
    "recall_tree": PeerSpec(
        "Vowpal Wabbit recall_tree (one label)", "vowpalwabbit", whole=True, tree=True
    ),
}
SETS = (
    "bibtex",
    "cooking",
    "news20_bydate",
    "clef_imclef07a",
    "mnist",
    "kddcup99_10pct",
    "gutenberg_lcsh",
    "gnd_tibkat",
)
C = {"bibtex": 0.01, "mnist": 0.01}  # 1 elsewhere
# threshold below which peers drop weights, their default; none on sets of few labels, where weights
# and models are small
PRUNE = 0.1
FEW = 2000


class Set(NamedTuple):
    """A data set with the files of its peers. `columns` are the labels of the one-vs-rest peers."""

    name: str
    data: Dataset
    columns: Any
    flat: Path
    whole: Path

    @property
    def sampled(self) -> bool:
        """Return whether the one-vs-rest peers train a sample of the labels."""
        return self.flat != self.whole


def prepare(name: str, chosen: Any, folder: Path) -> Set:
    """Build the set and write the files of its peers, once."""
    data = dataset(name, chosen.data, folder / "sets")
    present = np.flatnonzero(data.label_counts > 0).astype(np.int32)
    size = dict(entry.split(":") for entry in chosen.samples).get(name)
    columns = sample(data.label_counts, int(size)) if size else present
    whole = folder / "tasks" / name / "all"
    flat = (
        folder / "tasks" / name / f"sample-{len(columns)}" if len(columns) < len(present) else whole
    )
    for place, labels in {whole: present, flat: columns}.items():
        if not (place / "train.txt").exists():
            write_folder(data, labels, place)
    return Set(name, data, columns, flat, whole)


def task_of(peer: str, those: Set, core: int | None, program: Path | None) -> dict[str, Any]:
    """Return the task of the worker."""
    who, cost = PEERS_BY_NAME[peer], C.get(those.name, 1.0)
    common = {
        "peer": peer,
        "package": who.package,
        "k": 5,
        "core": core,
        "data": those.data.content_hash,
    }
    if who.package == "xcray":
        columns = str(those.flat / "columns.npy") if those.sampled else None
        params = {"C": cost, **who.params}
        return {
            **common,
            "dataset": str(those.data.path),
            "params": params,
            "columns": columns,
            "sample_only": not who.whole,
        }
    prune = PRUNE if those.data.n_labels > FEW else 0.0
    given = {} if program is None else {"program": str(program)}
    return {
        **common,
        **given,
        "folder": str(those.whole if who.whole else those.flat),
        "C": cost,
        "prune": prune,
    }


def runs_of(
    those: Set, peers: list[str], chosen: Any, python: Path, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Run all programs on one set, in rounds.

    A program that has used --patience seconds is not repeated.
    """
    core = default_core() if chosen.core is None else chosen.core if chosen.core >= 0 else None
    runs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
    for number in range(chosen.repeats):
        for peer in peers:
            spent = sum(run.get("train_cpu_s", chosen.patience) for run in runs[peer])
            if spent >= chosen.patience and peer not in ("xcray", "liblinear"):
                continue
            file = folder / "runs" / f"{those.name}-{peer}-{number}.json"
            run = cached(
                task_of(peer, those, core, getattr(chosen, peer, None)),
                python,
                chosen.limit,
                file,
                peer in chosen.again,
            )
            runs[peer].append(run)
            output = (
                run.get("failed")
                or f"{run['train_cpu_s']:.2f} s CPU, {run['train_wall_s']:.2f} s wall, load {run['load']:.1f}"
            )
            print(f"{those.name} {peer} #{number}: {output}", flush=True)
    return runs


def row_of(peer: str, runs: list[dict[str, Any]], those: Set) -> dict[str, Any]:
    """Return one row of the table: medians over the runs, and the answers of the last."""
    who, fine = PEERS_BY_NAME[peer], [run for run in runs if "failed" not in run]
    row = {"set": those.name, "peer": peer, "title": who.title, "tree": who.tree, "runs": len(fine)}
    if not fine:
        return {**row, "failed": runs[-1]["failed"]}
    last = fine[-1]
    present = int((those.data.label_counts > 0).sum())
    part = those.sampled and not who.whole
    labels, top = len(those.columns) if part else present, np.array(last["top"])
    ms = 1e3 * median(run["train_cpu_s"] for run in fine) / labels
    row |= {
        "labels": labels,
        "ms_a_class": ms,
        "core_seconds_all_labels": ms * present / 1e3,
        "extrapolated": part,
    }
    row |= {
        name: last[name]
        for name in ("weights", "not_converged", "model_bytes", "largest_gap")
        if name in last
    }
    row |= {
        "peak_bytes": last["peak_bytes"],
        "training_bytes": last["peak_bytes"] - last["rest_bytes"],
        "load": last["load"],
    }
    if part:
        return {**row, "sample": measures_sample(top, those.data, those.columns)}
    labels_of = np.load(those.whole / "columns.npy")
    row |= measures_all(
        top if who.package == "xcray" else np.where(top >= 0, labels_of[top], -1), those.data
    )
    return (
        {**row, "sample": measures_sample(np.array(last["top_sample"]), those.data, those.columns)}
        if "top_sample" in last
        else row
    )


def bars(
    rows: list[dict[str, Any]], runs: dict[str, list[dict[str, Any]]], those: Set
) -> dict[str, Any]:
    """Compare xcray with each peer of one set.

    Returned are the speed-up per label (median over rounds), the difference of P@1, and memory.
    """
    results = {row["peer"]: row for row in rows if "failed" not in row}
    us = next((peer for peer in ("xcray", "xcray_sample") if peer in results), None)
    if us is None:
        return {}
    ours, X = results[us], those.data.train.X
    out: dict[str, Any] = {"set": those.name, "xcray": us, "against": {}}
    if us == "xcray":
        out["memory_beside_model_in_X"] = (ours["training_bytes"] - ours["model_bytes"]) / (
            8 * X.nnz + 8 * (X.n_rows + 1)
        )
    for peer in results.keys() - {us}:
        row, scale = results[peer], ours["labels"] / results[peer]["labels"]
        rounds = [
            pair
            for pair in zip(runs[peer], runs[us], strict=False)
            if not any("failed" in run for run in pair)
        ]
        faster = median(
            scale * theirs["train_cpu_s"] / mine["train_cpu_s"] for theirs, mine in rounds
        )
        if ours["extrapolated"] and not row["extrapolated"]:
            continue  # our sample and all their labels are not comparable
        kind = "sample" if row["extrapolated"] else "all"
        same = (
            median(theirs["train_cpu_s"] / mine["sample_cpu_s"] for theirs, mine in rounds)
            if kind == "sample"
            else faster
        )
        p1 = [(entry["sample"] if kind == "sample" else entry)["P@1"] for entry in (ours, row)]
        verdict = {
            "times_faster": faster,
            "times_faster_on_the_same_labels": same,
            "P@1_more": round(p1[0] - p1[1], 2),
        }
        out["against"][peer] = {**verdict, "P@1_of": kind}
    return out


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Compare on every set."""
    place = (options.cache or folder).resolve()
    python, absent = environment(
        (options.env or place / "env").resolve(),
        {PEERS_BY_NAME[peer].package for peer in options.peers},
    )
    if options.dismecpp:
        absent.pop("dismecpp", None)
        options.dismecpp = options.dismecpp.resolve()
    rows, verdicts = [], []
    for name in options.sets or (SETS if options.data else ["synthetic"]):
        those = prepare(name, options, place)
        usable = [peer for peer in options.peers if PEERS_BY_NAME[peer].package not in absent]
        if not those.sampled:
            usable = [peer for peer in usable if not peer.startswith("xcray_sample")]
        runs = runs_of(those, usable, options, python, place)
        mine = [row_of(peer, runs[peer], those) for peer in usable]
        rows += mine
        verdicts.append(bars(mine, runs, those))
    print(table(rows, verdicts))
    return {
        "benchmark": "peers",
        "rows": rows,
        "bars": verdicts,
        "absent": absent,
        "versions": versions(python),
    }


def main() -> None:
    """Compare on every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"], "peers": ["xcray"], "repeats": 1},
        sets={"nargs": "+"},
        peers={"nargs": "+", "default": list(PEERS_BY_NAME), "choices": list(PEERS_BY_NAME)},
        samples={
            "nargs": "*",
            "default": ["gutenberg_lcsh:1200", "gnd_tibkat:320"],
            "help": "SET:LABELS of one-vs-rest peers",
        },
        env={
            "type": Path,
            "help": "the peers' environment, created if missing; default: in the cache",
        },
        cache={
            "type": Path,
            "help": "directory of data sets and runs; default: a temporary one",
        },
        again={
            "nargs": "+",
            "default": [],
            "help": "peers to run again although the cache has their runs",
        },
        repeats={"type": int, "default": 3},
        patience={
            "type": float,
            "default": 60.0,
            "help": "CPU seconds on one set after which a peer is not repeated",
        },
        dismecpp={"type": Path, "help": "the program `train` of DiSMEC++"},
        core={
            "type": int,
            "help": "the core of all runs; default: the last one; -1: any",
        },
        limit={"type": float, "default": 1800.0, "help": "time limit of a run in seconds"},
    )


if __name__ == "__main__":
    main()
