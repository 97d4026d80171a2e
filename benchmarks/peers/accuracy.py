"""P@1, P@5, nDCG@5 and PSP@5 of xcray, with --auto and with groups, and of peers with a chosen C.

`python -m benchmarks.peers.accuracy --data DIR [--sets bibtex ...] [--peers pecos_tree ...]
[--cs 0.3 1 3] [--tuning-rows N] [--cache DIR] [--env DIR] [--dismecpp PROGRAM]`

Every peer is trained with its defaults (C = 1), and once more with the C of --cs that is best on
held-out training rows for P@1 + nDCG@5. These are the rows that --auto measures on; --tuning-rows
limits the other rows, on which the peers are trained for it, and a quarter as many are measured.
All programs read the same rows; LinearSVC and PECOS, which do not normalise them, are trained once
more on rows of length 1 where the lengths differ. All run on one core with one thread. CPU seconds
are those of training; the choice of C or of other parameters is counted separately for the peers
and included for --auto and groups. Differences are those to the row of --auto, with paired standard
errors (bootstrap). A second table has the recall of rare, middling and frequent labels, with a
third of the training positives each. --dismecpp is the path of the program `train` of DiSMEC++,
built elsewhere.

DIR has a folder per set with train.txt.xz and test.txt.xz; --sets names any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import dataset, run_benchmark
from benchmarks.peers.__main__ import PEERS_BY_NAME, PRUNE
from benchmarks.peers.data import write_folder, write_task
from benchmarks.peers.environment import environment, versions
from benchmarks.peers.run import cached
from xcray.arrays import Pattern, TopK, frozen, pattern_from
from xcray.data.dataset import Dataset
from xcray.data.splits import HashSplit
from xcray.kernels.row_norm import has_equal_lengths
from xcray.measures import evaluate
from xcray.training.evaluation import EvaluationOptions, compare_samples, measure_ranking
from xcray.training.selection.held_out import HOLDOUT

PEERS = ("sklearn", "pecos_tree", "omikuji_tree", "napkinxc_plt", "dismecpp")
SETS = ("bibtex", "cooking", "news20_bydate", "gutenberg_lcsh", "gnd_tibkat")
# rows of xcray: --auto and --groups
OURS = {
    "xcray, defaults": (False, "none"),
    "xcray, --groups auto": (False, "auto"),
    "xcray, --auto": (True, "none"),
    "xcray, --auto --groups auto": (True, "auto"),
}
REFERENCE = "xcray, --auto"
# peers that do not normalise rows; omikuji and napkinXC do
READ_AS_GIVEN = ("sklearn", "pecos_tree")
CS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SHOWN = ("P@1", "P@5", "nDCG@5", "PSP@5")
COMPARED = ("P@1", "nDCG@5")
EVALUATION = EvaluationOptions(ks=(1, 5))


class Folders(NamedTuple):
    """Task folders of a set: all training rows with the test rows, and its split for tuning."""

    data: Dataset
    columns: Any
    all: Path
    learn: Path
    held_Y: Pattern
    dismecpp: Path | None


def prepare(
    data: Dataset, folder: Path, dismecpp: Path | None = None, tuning_rows: int | None = None
) -> Folders:
    """Write the two task folders of a set, once. tuning_rows: training rows of the second."""
    columns = np.flatnonzero(data.label_counts > 0).astype(np.int32)
    whole, learn = folder / "all", folder / "learn"
    if not (whole / "train.txt").exists():
        write_folder(data, frozen(columns, np.int32), whole)
    X, Y = data.train.X.to_scipy(), data.train.Y.to_scipy()[:, columns]
    is_held_out = HashSplit(HOLDOUT).mask(0, X.shape[0])
    held_out = np.flatnonzero(is_held_out)[: tuning_rows and tuning_rows // 4]
    if not (learn / "train.txt").exists():
        rows = np.random.default_rng(0).permutation(np.flatnonzero(~is_held_out))[:tuning_rows]
        rows.sort()
        write_task(X[rows], Y[rows], X[held_out], columns, learn)
    return Folders(data, columns, whole, learn, pattern_from(Y[held_out]), dismecpp)


def answers(labels: Any) -> TopK:
    """Return answers (rows, k) without scores; labels below 0 count as misses."""
    return TopK(frozen(labels, np.int32), frozen(np.zeros(np.shape(labels)), np.float64))


def with_measures(
    rows: list[dict[str, Any]], data: Dataset, reference: str = REFERENCE
) -> list[dict[str, Any]]:
    """Return the rows of one set with the measures of their answers "top", and their differences.

    Measures are in percent; differences are those to the row of the program `reference`.
    """
    measured = {}
    for row in rows:
        if "top" in row:
            args = (data["test"].Y, EVALUATION.ks, data.label_counts, data, EVALUATION)
            measured[row["program"]] = measure_ranking(answers(row.pop("top")), *args)
    for row in rows:
        if row["program"] not in measured:
            continue
        entry, drawn = measured[row["program"]]
        row |= {name: 100 * entry["measures"][name] for name in SHOWN if name in entry["measures"]}
        row["by_frequency"] = entry["by_frequency"]
        if reference in measured and row["program"] != reference:
            row["differences"] = compare_samples(entry, drawn, *measured[reference])
    return rows


def train_peer(
    those: Folders, peer: str, C: float, part: str, unit: bool, train: Any
) -> dict[str, Any]:
    """Train one peer on all training rows, or on those that are not held out; return its run.

    unit: divide each row by its length first.
    """
    folder = those.all if part == "all" else those.learn
    who = PEERS_BY_NAME[peer]
    task = {"peer": peer, "package": who.package, "k": 5, "core": None, "C": C, "prune": PRUNE}
    if peer == "dismecpp":  # which drops no weights by default
        task |= {"prune": 0.0, "program": str(those.dismecpp)}
    rows = {"unit": True} if unit else {}
    name = f"{peer}-{part}-{C:g}{'-unit' if unit else ''}"
    return dict(train({**task, **rows, "folder": str(folder)}, name))


def peer_rows(
    those: Folders, peer: str, unit: bool, train: Any, cs: Sequence[float] = CS
) -> list[dict[str, Any]]:
    """Return the rows of one peer: with its defaults, and with the best C. unit: see above.

    "validation" is the measure on held-out training rows that C is chosen by.
    """
    values, seconds = {}, 0.0
    for C in cs:
        run = train_peer(those, peer, C, "learn", unit, train)
        if "failed" in run:
            print(f"{peer} C={C:g}: {run['failed']}", flush=True)
            continue
        seconds += run["train_cpu_s"]
        scores = evaluate(answers(run["top"]), those.held_Y, ks=EVALUATION.ks)
        values[C] = scores["P@1"] + scores.get("nDCG@5", 0.0)
    rows = []
    for title, C in (("defaults", 1.0), ("tuned", max(values, key=values.__getitem__, default=1))):
        run = train_peer(those, peer, C, "all", unit, train)
        name = f"{peer}{', unit rows' if unit else ''}, {title}"
        row = {"program": name, "C": C, "tuning_cpu_s": seconds, "validation": values.get(C, 0.0)}
        if "failed" in run:
            rows.append({**row, "failed": run["failed"]})
            continue
        labels = np.array(run["top"])
        top = np.where(labels >= 0, those.columns[labels], -1)
        rows.append({**row, "top": top, "cpu_s": run["train_cpu_s"]})
    return rows


def xcray_row(those: Folders, program: str, train: Any) -> dict[str, Any]:
    """Return the row of xcray with the options of `program`, see OURS."""
    auto, groups = OURS[program]
    task = {"peer": "xcray", "package": "xcray", "k": 5, "core": None, "params": {}}
    task |= {"dataset": str(those.data.path), "columns": None, "sample_only": False, "auto": auto}
    if groups != "none":
        task["groups"] = groups
    run = train(task, program.replace(", ", "-").replace(" ", "_"))
    if "failed" in run:
        return {"program": program, "failed": run["failed"]}
    top, cpu = np.array(run["top"]), run["train_cpu_s"]
    return {"program": program, "top": top, "cpu_s": cpu, "selection": run.get("selection")}


def table(rows: list[dict[str, Any]], reference: str = "--auto") -> str:
    """Return Markdown."""
    compared = [f"{name} - {reference}" for name in COMPARED]
    names = ["set", "program", "C", *SHOWN, *compared, "CPU s"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [row["set"], row["program"], f"{row['C']:g}" if "C" in row else ""]
        cells += [f"{row[name]:.2f}" if name in row else "" for name in SHOWN]
        for name in COMPARED:
            own = row.get("differences", {}).get(name)
            error = own and f"{100 * own['difference']:+.2f} ± {100 * own['standard_error']:.2f}"
            cells.append(error or "")
        cells += [row["failed"] if "failed" in row else f"{row['cpu_s']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def frequency_table(rows: list[dict[str, Any]]) -> str:
    """Return the recall in the first five labels by frequency of labels, as Markdown."""
    lines = ["| set | program | rare | middling | frequent |", "|---" * 5 + "|"]
    for row in rows:
        if "by_frequency" in row:
            recalls = [f"{100 * part.get('recall@5', 0.0):.1f}" for part in row["by_frequency"]]
            lines.append("| " + " | ".join([row["set"], row["program"], *recalls]) + " |")
    return "\n".join(lines)


def measure(options: Any, folder: Path) -> dict[str, Any]:
    """Compare on every set."""
    place = (options.cache or folder).resolve()
    python, absent = environment(
        (options.env or place / "env").resolve(),
        {PEERS_BY_NAME[peer].package for peer in options.peers},
    )
    program = options.dismecpp.resolve() if options.dismecpp else None
    if program:
        absent.pop("dismecpp", None)
    rows = []
    for name in options.sets:
        data = dataset(name, options.data, place / "sets")
        those = prepare(data, place / "tasks" / name, program, options.tuning_rows)

        def train(task: dict[str, Any], run: str, name: str = name) -> dict[str, Any]:
            file = place / "runs" / name / f"{run}.json"
            again = options.again and task["package"] == "xcray"
            return cached(task, python, options.limit, file, again)

        mine = [xcray_row(those, program, train) for program in OURS]
        for peer in options.peers:
            if PEERS_BY_NAME[peer].package not in absent:
                both = peer in READ_AS_GIVEN and not has_equal_lengths(data.train.X)
                for unit in (False, True) if both else (False,):
                    mine += peer_rows(those, peer, unit, train, options.cs)
        rows += [{"set": name, **row} for row in with_measures(mine, data)]
        print(table(rows), frequency_table(rows), sep="\n\n", flush=True)
    return {"benchmark": "accuracy", "rows": rows, "versions": versions(python)}


def main() -> None:
    """Compare on every set and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": ["synthetic"], "peers": []},
        sets={"nargs": "+", "default": list(SETS)},
        peers={"nargs": "*", "default": list(PEERS), "choices": list(PEERS_BY_NAME)},
        cs={"type": float, "nargs": "+", "default": CS},
        tuning_rows={"type": int, "help": "rows that peers are tuned on; default: all"},
        env={"type": Path, "help": "the peers' environment; default: in the cache"},
        cache={"type": Path, "help": "directory of data sets and runs; default: a temporary one"},
        again={"action": "store_true", "help": "run xcray again although the cache has its runs"},
        dismecpp={"type": Path, "help": "the program `train` of DiSMEC++"},
        limit={"type": float, "default": 1800.0, "help": "time limit of a run in seconds"},
    )


if __name__ == "__main__":
    main()
