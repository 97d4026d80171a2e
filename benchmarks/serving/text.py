"""Text vectorisation: the mapped vocabulary compared with a dictionary and a Counter.

Both must give the same bits.

`python -m benchmarks.serving.text [--texts 4000] [--terms 1600000] [--repeats 7]`

There are two pipelines: the demo corpus with its options (identifiers, plurals, aliases), and the
default options over a vocabulary of --terms names, generated around the words of the corpus. Each
transforms its documents, and the first twelve words of each, in batches. Opening: seconds and
memory of new processes. Times: processor microseconds per text, medians of interleaved rounds.
Lock: the share of the time that holds the interpreter's lock, which is all time outside compiled
code, minus the time of its calls without text.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, in_folder
from benchmarks.serving.footprint_child import memory
from xcray.arrays import CSR, csr
from xcray.data.demo import TEXT_PARAMS, documents
from xcray.data.text import vectorizer as vectorise
from xcray.data.text.pipeline import TextPipeline
from xcray.data.text.tokenizer import TextParams, make_tokenizer

BATCHES, WORDS = (1, 32, 1000), 12
SYLLABLES = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]


class Dictionary:
    """Reference: a dictionary of all terms per process, Python strings and a Counter per text."""

    def __init__(self, pipeline: TextPipeline) -> None:
        self.pipeline = pipeline
        self.split = make_tokenizer(pipeline.params)
        self.number = {term: j for j, term in enumerate(pipeline.terms.to_pylist())}

    def transform(self, texts: Sequence[str]) -> CSR:
        """Return rows of length 1, computed in float64."""
        indptr, ids, counts = [0], [], []
        for text in texts:
            row = Counter(j for j in map(self.number.get, self.split(text)) if j is not None)
            for j in sorted(row):
                ids.append(j)
                counts.append(row[j])
            indptr.append(len(ids))
        weights = np.array(counts, np.float64)
        if self.pipeline.params.sublinear_tf:
            weights = np.log(weights) + 1.0
        weights *= self.pipeline.idf[np.array(ids, np.int64)]
        row_of = np.repeat(np.arange(len(texts)), np.diff(indptr))
        weights /= np.sqrt(np.bincount(row_of, weights * weights, minlength=len(texts)))[row_of]
        return csr(indptr, ids, weights, len(self.number))


def many_terms(texts: list[str], n: int) -> TextPipeline:
    """Return a default pipeline over the words of texts and generated ones, n in all."""
    names, rng = set(TextPipeline.fit(texts).terms.to_pylist()), np.random.default_rng(0)
    while len(names) < n:
        rows = rng.integers(0, len(SYLLABLES), (100_000, 5)).tolist()
        names.update("".join(SYLLABLES[s] for s in row[: 2 + row[0] % 4]) for row in rows)
    selection = sorted(sorted(names, key=len)[:n])
    return TextPipeline(TextParams(), selection, rng.integers(1, 1000, n), 2 * n)


def opening(directory: Path, repeats: int) -> dict[str, Any]:
    """Return seconds to open and first use, and private bytes, in new processes."""
    fields: dict[str, list[dict[str, float]]] = {"mapped": [], "dictionary": []}
    for _ in range(repeats):
        for way, runs in fields.items():
            command = [
                sys.executable,
                "-m",
                "benchmarks.serving.text",
                "--child",
                way,
                str(directory),
            ]
            runs.append(
                json.loads(
                    subprocess.run(command, capture_output=True, text=True, check=True).stdout
                )
            )
    return {
        way: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for way, runs in fields.items()
    }


def child(way: str, directory: str) -> dict[str, float]:
    """Open one variant in this process, after another pipeline has loaded compiled code."""
    TextPipeline.fit(["some words"]).transform(["words"])
    before, began = memory(), time.perf_counter()
    pipeline: Any = TextPipeline.load(Path(directory), verify=False)
    if way == "dictionary":
        pipeline = Dictionary(pipeline)
    pipeline.transform(["some words"])
    seconds, after = time.perf_counter() - began, memory()
    return {"seconds": seconds, **{name: after[name] - before[name] for name in after}}


def speed(pipeline: TextPipeline, texts: list[str], repeats: int) -> list[dict[str, Any]]:
    """Return microseconds per text of both variants by batch; the rows must be the same."""
    plain = Dictionary(pipeline)
    for one, other in zip(pipeline.transform(texts), plain.transform(texts), strict=True):
        np.testing.assert_array_equal(one, other)
    out = []
    for batch in BATCHES:
        batches = [texts[i : i + batch] for i in range(0, len(texts) - batch + 1, batch)]
        rounds = [
            (_micros(pipeline.transform, batches), _micros(plain.transform, batches))
            for _ in range(repeats)
        ]
        mapped, dictionary = (statistics.median(column) for column in zip(*rounds, strict=True))
        row = {
            "batch": batch,
            "mapped_us": mapped,
            "dictionary_us": dictionary,
            "lock_share": _locked(pipeline, batches),
        }
        out.append({name: round(value, 3) for name, value in row.items()})
    return out


def _micros(transform: Callable[[list[str]], CSR], batches: list[list[str]]) -> float:
    """Return processor microseconds per text."""
    began = time.process_time()
    for texts in batches:
        transform(texts)
    return (time.process_time() - began) / sum(map(len, batches)) * 1e6


def _locked(pipeline: TextPipeline, batches: list[list[str]]) -> float:
    """Return the share of the time that holds the interpreter's lock."""
    compiled, inside = vectorise.vectorize_texts, [0.0, 0]

    def watched(*args: Any) -> Any:
        began = time.process_time()
        out = compiled(*args)
        inside[0] += time.process_time() - began
        inside[1] += 1
        return out

    vectorise.vectorize_texts = watched
    try:
        _micros(pipeline.transform, [[""]] * 1000)
        crossing = inside[0] / inside[1]  # arguments to and from compiled code
        inside[:] = [0.0, 0]
        whole = _micros(pipeline.transform, batches) * sum(map(len, batches)) * 1e-6
    finally:
        vectorise.vectorize_texts = compiled
    return min(1.0, 1 - (inside[0] - inside[1] * crossing) / whole)


def main() -> None:
    """Run all parts and print the JSON."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], sys.argv[3])))
        return
    chosen = arguments(
        __doc__ or "",
        texts={"type": int, "default": 4000, "help": "documents of the demo corpus"},
        terms={"type": int, "default": 1_600_000, "help": "names of the large vocabulary"},
        repeats={"type": int, "default": 7, "help": "rounds"},
    )

    def run(folder: Path) -> dict[str, Any]:
        corpus = [document.text for document in documents()]
        every = max(1, len(corpus) // chosen.texts)
        texts = corpus[::every][: chosen.texts]
        short = [" ".join(text.split()[:WORDS]) for text in texts]
        rows = []
        for name, pipeline in (
            ("pydocs", TextPipeline.fit(corpus, TEXT_PARAMS)),
            ("large", many_terms(corpus, chosen.terms)),
        ):
            pipeline.save(folder / name)
            loaded = TextPipeline.load(folder / name, verify=False)
            row: dict[str, Any] = {
                "pipeline": name,
                "terms": loaded.n_features,
                "opening": opening(folder / name, 3),
            }
            for kind, some in (("documents", texts), ("short", short)):
                letters = float(np.mean([len(text) for text in some]))
                row[kind] = {"letters": letters, "speed": speed(loaded, some, chosen.repeats)}
                print(name, kind, round(letters), *row[kind]["speed"], sep="\n  ", flush=True)
            print(name, row["opening"], flush=True)
            rows.append(row)
        if chosen.picture:
            picture(rows, chosen.picture)
        return {"benchmark": "text", "texts": len(texts), "pipelines": rows}

    in_folder(run, chosen.json)


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw microseconds per text by batch, and private memory, of both variants."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, 1 + len(rows), figsize=(4 * (1 + len(rows)), 3.4), layout="constrained"
    )
    for axis, row in zip(axes[:-1], rows, strict=True):
        for kind, style in (("documents", "-"), ("short", "--")):
            for way, color in (("mapped_us", "C0"), ("dictionary_us", "C1")):
                ys = [point[way] for point in row[kind]["speed"]]
                axis.plot(BATCHES, ys, style, color=color, marker=".", label=f"{way[:-3]}, {kind}")
        axis.set(
            xscale="log", xlabel="texts per call", ylabel="microseconds per text", ylim=(0, None)
        )
        axis.set_title(f"{row['pipeline']}, {row['terms']:,} terms")
        axis.legend(frameon=False, fontsize=8)
    for offset, way in ((-0.2, "mapped"), (0.2, "dictionary")):
        heights = [row["opening"][way]["anonymous"] / 1e6 for row in rows]
        axes[-1].bar(np.arange(len(rows)) + offset, heights, 0.4, label=way)
    axes[-1].set_xticks(range(len(rows)), [row["pipeline"] for row in rows])
    axes[-1].set(ylabel="MB", title="private memory of each process")
    axes[-1].legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
