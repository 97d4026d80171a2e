"""Costs of a predicting process: time to first prediction, memory, sharing, and leaks.

`python -m benchmarks.serving.footprint [--model DIR] [--rows DATASET] [--repeats 7] [--processes 8]
[--reloads 100]`

Without --model a text model is generated (15,000 labels, 40,000 terms, 4 million weights). Times
are medians of new processes, with the variants interleaved: "all": everything installed; "core":
packages outside a core install are hidden; "cold": all, without compiled kernels. Shared memory:
each process loads its kernels on a toy model, then opens two versions (copies, so different pages
on disk) and predicts 1,000 rows with each. Figures are sums of proportional set sizes (PSS), before
and added, relative to the bytes of one model. Leaks: memory after each of 100 reloads.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, in_folder
from benchmarks.serving.footprint_child import ROWS, memory
from xcray.arrays import csr
from xcray.data.dataset import Dataset
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.tokenizer import TextParams
from xcray.errors import EXTRAS
from xcray.model.model import Model, ModelContent, TrainingRecord, write_model
from xcray.storage.arrow import write_matrix
from xcray.storage.atomic import write_json

LABELS, TERMS, WEIGHTS_A_LABEL, FEATURES = 15_000, 40_000, 400, 60
KINDS = ("all", "core", "cold")
BAR = 1.2  # limit of the added memory of all processes and versions over one model


def made_up(
    path: Path, n_labels: int = LABELS, n_terms: int = TERMS, per_label: int = WEIGHTS_A_LABEL
) -> Path:
    """Generate a text model whose weights follow Zipf's law over the terms."""
    rng = np.random.default_rng(0)
    names = sorted(
        {f"{a}{b}{c}" for a in _syllables() for b in _syllables() for c in ("", *_syllables())}
    )[::2][:n_terms]
    rank = rng.permutation(len(names))
    share = 1.0 / (1.0 + rank)
    text = TextPipeline(TextParams(), names, np.maximum(1, 100_000 * share / share.max()), 200_000)
    drawn = [
        np.unique(rng.choice(len(names), per_label, p=share / share.sum()))
        for _ in range(min(n_labels, 500))
    ]
    columns = [drawn[k % len(drawn)] for k in range(n_labels)]
    indptr = np.cumsum([0, *map(len, columns)])
    W = csr(indptr, np.concatenate(columns), rng.normal(size=indptr[-1]), len(names))
    labels = [f"label{k}" for k in range(n_labels)]
    b = rng.normal(size=n_labels) - 3
    write_model(
        path,
        ModelContent(W=W, b=b, label_names=labels, feature_names=names, text=text),
        TrainingRecord(solver="made", params={}, dataset_hash="0"),
    )
    return path


def _syllables() -> list[str]:
    """Return ninety syllables."""
    return [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]


def written_queries(model: Model, rows: str, path: Path) -> Path:
    """Write 1,000 rows to a file: of a data set's test part, repeated if needed, or generated.

    Generated rows have features as frequent as their weights; for a text model they are texts.
    """
    if rows:
        X = Dataset.open(rows)["test"].X
        expected = np.arange(ROWS) % X.n_rows
        columns, values = zip(*(X.row(i) for i in expected), strict=True)
    else:
        drawn = model.W.indices[np.random.default_rng(0).integers(0, model.nnz, (ROWS, FEATURES))]
        if model.text is not None:
            write_json(
                path.with_suffix(".json"),
                [" ".join(model.feature_names.take(row).to_pylist()) for row in drawn],
            )
            return path.with_suffix(".json")
        columns = tuple(np.unique(row) for row in drawn)
        values = tuple(np.full(len(row), len(row) ** -0.5) for row in columns)
    X = csr(
        np.cumsum([0, *map(len, columns)]),
        np.concatenate(columns),
        np.concatenate(values),
        model.n_features,
    )
    write_matrix(path, X)
    return path


def child(task: str, record: dict[str, Any], **environment: str) -> subprocess.Popen[str]:
    """Start one process."""
    command = [sys.executable, "-m", "benchmarks.serving.footprint_child", task, json.dumps(record)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def finished(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return all steps of a process, which must succeed."""
    out, _ = process.communicate("\n\n\n")
    if process.returncode:
        raise SystemExit(f"a process ended with {process.returncode}")
    return [json.loads(line) for line in out.splitlines()]


def first_answers(model: Path, rows: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Return median seconds and bytes of every step to a prediction, by variant."""
    runs: dict[str, list[list[dict[str, Any]]]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats):
        for kind in KINDS:
            if kind == "cold" and repeat >= 2:
                continue  # compiling is slow and takes about the same time each run
            with tempfile.TemporaryDirectory(dir=folder) as empty:
                fields = {
                    "model": str(model),
                    "rows": rows,
                    "core": kind == "core",
                    "extras": list(EXTRAS),
                    "started": time.time(),
                }
                runs[kind].append(
                    finished(
                        child(
                            "first_answer",
                            fields,
                            **({"NUMBA_CACHE_DIR": empty} if kind == "cold" else {}),
                        )
                    )
                )
    out: dict[str, Any] = {}
    for kind, result in runs.items():
        steps = {}
        for at, step in enumerate(result[0][:-1]):
            numbers = {
                name: [run[at][name] for run in result]
                for name in ("seconds", "rss", "pss", "anonymous")
            }
            steps[step["step"]] = {
                name: statistics.median(values) for name, values in numbers.items()
            }
        warm = ("python", "import", "open", "predictor", "first answer")
        until = [sum(step["seconds"] for step in run if step["step"] in warm) for run in result]
        out[kind] = {
            "steps": steps,
            "to_first_answer": statistics.median(until),
            "runs": len(result),
            **result[0][-1],
        }
        print(
            kind,
            f"{out[kind]['to_first_answer']:.2f} s",
            {n: round(s["seconds"], 4) for n, s in steps.items()},
            flush=True,
        )
        print(
            kind,
            "MB",
            {n: [round(s[m] / 1e6) for m in ("rss", "pss", "anonymous")] for n, s in steps.items()},
            flush=True,
        )
    return out


def shared(model: Path, rows: str, processes: int, folder: Path) -> dict[str, Any]:
    """Return the memory of many processes with one version, and with two, over one model."""
    toy = made_up(folder / "toy", 50, 200, 20)
    other = folder / "other-version"
    shutil.copytree(model, other)
    size = Model.open(model, verify=False).n_bytes
    out: dict[str, Any] = {"processes": processes, "model_bytes": size, "bar": BAR}
    toy_rows = written_queries(Model.open(toy, verify=False), "", folder / "toy-rows.arrow")
    for name, models in (("one_version", [model]), ("two_versions", [model, other])):
        fields = {
            "toy": str(toy),
            "toy_rows": str(toy_rows),
            "models": [str(path) for path in models],
            "rows": rows,
        }
        workers = [child("serve", fields) for _ in range(processes)]
        try:
            steps = [_step(worker) for worker in workers]
            before = _sum(workers)
            for worker in workers:
                _resume(worker)
            steps = [_step(worker) for worker in workers]
            after = _sum(workers)
        finally:
            for worker in workers:
                worker.communicate("\n")
        added = {what: after[what] - before[what] for what in after}
        row = {
            "interpreters": before,
            "added": added,
            "over_one_model": added["pss"] / size,
            "answers": steps[0]["answers"],
        }
        row["anonymous_a_process"] = added["anonymous"] / processes
        out[name] = row
        print(
            name,
            {w: round(n / 1e6) for w, n in added.items()},
            "MB added;",
            f"{row['over_one_model']:.2f} x",
            flush=True,
        )
    shutil.rmtree(other)
    return out


def _step(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Read the next step of a worker."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SystemExit("a worker ended before its time")
    return dict(json.loads(line))


def _resume(worker: subprocess.Popen[str]) -> None:
    """Let a worker continue."""
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


def _sum(workers: list[subprocess.Popen[str]]) -> dict[str, int]:
    """Return the memory of all workers together."""
    results = [memory(worker.pid) for worker in workers]
    return {what: sum(each[what] for each in results) for what in ("pss", "anonymous")}


def reloads(model: Path, rows: str, times: int) -> dict[str, Any]:
    """Open a model, query it and close it repeatedly; return the growth of the process.

    The growth is estimated by least squares over the last three quarters.
    """
    steps = finished(child("reload", {"model": str(model), "rows": rows, "times": times}))
    later = steps[len(steps) // 4 :]
    slopes = {
        what: float(np.polyfit(np.arange(len(later)), [step[what] for step in later], 1)[0])
        for what in ("rss", "anonymous", "files", "maps")
    }
    out = {
        "times": times,
        "slope_a_reload": slopes,
        "first": steps[0],
        "last": steps[-1],
        "rss": [step["rss"] for step in steps],
    }
    print(
        "reloads",
        {what: round(value, 3) for what, value in slopes.items()},
        "a reload;",
        steps[-1],
        flush=True,
    )
    return out


def picture(record: dict[str, Any], path: Path) -> None:
    """Draw time to a prediction by step, memory of many processes, and memory over reloads."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    kinds = [kind for kind in ("all", "core") if kind in record["first_answer"]]
    base = np.zeros(len(kinds))
    for step in ("python", "import", "open", "predictor", "first answer"):
        seconds = np.array(
            [record["first_answer"][kind]["steps"][step]["seconds"] for kind in kinds]
        )
        left.barh(kinds, seconds, left=base, label=step)
        base += seconds
    left.set(xlabel="seconds to the first prediction of a process", title="kernels compiled before")
    left.legend(frameon=False, fontsize=8)
    together = record["shared"]
    names = ("one_version", "two_versions")
    middle.bar(
        ["one version", "two versions"],
        [together[name]["over_one_model"] for name in names],
        color=["C0", "C1"],
    )
    middle.axhline(together["bar"], color="red", linewidth=0.8, label="bar")
    middle.set(
        ylabel="memory added, over one model",
        title=f"{together['processes']} processes, sum of shares",
    )
    middle.legend(frameon=False)
    course = np.array(record["reloads"]["rss"]) / 1e6
    right.plot(np.arange(1, len(course) + 1), course)
    right.set(
        xlabel="times opened, queried and closed",
        ylabel="resident, MB",
        ylim=(0, None),
        title="reloads",
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run all parts and print the JSON."""
    chosen = arguments(
        __doc__ or "",
        model={"type": Path, "help": "a model directory; default: a generated model"},
        rows={
            "type": str,
            "default": "",
            "help": "a data set, for its test rows; default: generated rows",
        },
        repeats={"type": int, "default": 7, "help": "new processes per variant"},
        processes={"type": int, "default": 8, "help": "processes that share memory"},
        reloads={"type": int, "default": 100, "help": "times a model is opened and closed"},
    )

    def run(folder: Path) -> dict[str, Any]:
        model = chosen.model or made_up(folder / "model")
        opened = Model.open(model, verify=False)
        head = {
            "labels": opened.n_labels,
            "features": opened.n_features,
            "weights": opened.nnz,
            "bytes": opened.n_bytes,
        }
        rows = str(written_queries(opened, chosen.rows, folder / "rows.arrow"))
        fields = {
            "benchmark": "footprint",
            "model": {**head, "text": opened.text is not None},
            "first_answer": first_answers(model, rows, chosen.repeats, folder),
            "shared": shared(model, rows, chosen.processes, folder),
            "reloads": reloads(model, rows, chosen.reloads),
        }
        if chosen.picture:
            picture(fields, chosen.picture)
        return fields

    in_folder(run, chosen.json)


if __name__ == "__main__":
    main()
