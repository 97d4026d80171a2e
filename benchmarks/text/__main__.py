"""What each text option gains: accuracy, processor time and model size, option after option.

python -m benchmarks.text --data DIR [--sets cooking,gutenberg_lcsh,gnd_tibkat_text]
    [--options default,stems,...] [--rows 0] [--part test] [--peers omikuji_tree,... --cs 0.3,1,3]

DIR holds `gnd_tibkat_text/{train,dev}.jsonl.xz`, `gnd_tibkat/label_names.tsv.xz`,
`cooking/cooking.stackexchange.txt.xz` (its last 3,000 rows are tested), and
`gutenberg_lcsh/docs.tsv.xz` (a fifth of the rows, by a hash of their number, is tested). Sets that
no option was chosen on: `titles_de` and `abstracts_en` have one field and language of
`gnd_tibkat_text`; `news20_bydate` has its word counts as texts of numbers. Any other NAME is
read from `NAME/train.jsonl.xz` and `NAME/test.jsonl.xz`: all texts of its rows are fields.

Options add up: each line of `OPTIONS` has those before it; `auto` begins with the default data set.
Measures count all true labels of a row, also those that do not occur in training. CPU is that of
the build, which reads and analyses all texts, and of the training, with all threads. `--rows`
limits the training rows. `--part validation` leaves a fifth of the training rows out and tests on
them, to choose options; `--part test` is for figures.

`--peers omikuji_tree,pecos_tree` trains programs of `benchmarks.peers` on the features of every
option, also on those that `auto` chose, as `benchmarks.peers.accuracy` does, with C of `--cs`; and
on sets of at most 1,000 labels LinearSVC of scikit-learn, one label against the rest, on features
of TfidfVectorizer. Of each peer, the features with the best P@1 + nDCG@5 on held-out training rows
are marked. Measures are of labels that occur in training, differences are to the last option.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import run_benchmark
from benchmarks.peers.accuracy import CS
from benchmarks.text.peers import K, compare_peers
from xcray.api.options import DEFAULT_MEASURE
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.label_texts import read_label_texts, set_label_texts
from xcray.data.splits import HashSplit
from xcray.data.text.fields import document
from xcray.model.model import Model
from xcray.predict.predictor import Predictor
from xcray.training import TrainSpec, train
from xcray.training.auto_params import REBUILT

KS: Final = (1, 5, 20)
SHOWN: Final = ("P@1", "P@5", "nDCG@5", "F1@5", "nDCG@20", "recall@20")
COOKING_TEST: Final = 3000
# name -> options of the build, and parameters of the solver; each has those before it
OPTIONS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "default": ({}, {}),
    "sublinear": ({"sublinear_tf": True, "min_df": 2}, {}),
    "stems": ({"language": None}, {}),  # of the set
    "pairs": ({"ngram_max": 2}, {}),
    "propensity": ({}, {"positives": "propensity", "lam": 0.3}),
    "fields": ({"fields": True}, {}),  # of the set
    "names": ({"names": True}, {}),  # of the labels, and a ranker; if the set has them
    "characters": ({"char_ngrams": [4, 6]}, {}),
}
AUTO: Final = "auto"  # the parameters and the options of the texts are chosen
NAMES: Final = {"gnd_tibkat_text": "gnd_tibkat/label_names.tsv.xz"}
# language, text fields, and text fields with a weight, of each set
SETS: Final = {
    "cooking": ("en", ["title"], None),
    "gutenberg_lcsh": ("en", ["title", "author"], {"title": {"weight": 2}, "author": {}}),
    "gnd_tibkat_text": ("lang", ["title", "abstract"], {"title": {"weight": 2}, "abstract": {}}),
    "titles_de": ("de", ["title"], None),
    "abstracts_en": ("en", ["abstract"], None),
    "news20_bydate": (None, ["text"], None),
    "generated": ("en", ["title", "abstract"], {"title": {"weight": 2}, "abstract": {}}),
}
NOT_TEXT: Final = ("id", "lang", "type")  # fields of sets that are not in SETS


def described(name: str, files: dict[str, Path]) -> tuple[Any, list[str], Any]:
    """Return language, text fields and weighted ones of a set. files: that `write_rows` wrote."""
    if name in SETS:
        return SETS[name]
    row = next(_rows(files["train"]))
    return "auto", [x for x in row if isinstance(row[x], str) and x not in NOT_TEXT], None


def rows_of(name: str, data: Path | None, part: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part of a set: its fields, and `labels`."""
    if name == "generated" or data is None:
        for i in range(400 if part == "train" else 80):
            topic = i * 7 % 5
            text = " ".join(f"word{topic}{(i * k) % 9}" for k in range(1, 9))
            yield {"title": f"topics{topic}", "abstract": text, "labels": [f"l{topic}"]}
    elif name in ("gnd_tibkat_text", "titles_de", "abstracts_en"):
        file = "train.jsonl.xz" if part == "train" else "dev.jsonl.xz"
        with lzma.open(data / "gnd_tibkat_text" / file, "rt", encoding="utf-8") as lines:
            records = map(json.loads, lines)
            yield from (row for row in records if name.endswith((row["lang"], "_text")))
    elif name == "news20_bydate":
        with lzma.open(data / name / f"{part}.txt.xz", "rt", encoding="utf-8") as lines:
            next(lines)
            for line in lines:
                labels, *cells = line.split()
                pairs = (cell.split(":") for cell in cells)
                text = " ".join(" ".join([f"w{word}"] * int(float(n))) for word, n in pairs)
                yield {"text": text, "labels": labels.split(",")}
    elif name == "cooking":
        with lzma.open(
            data / name / "cooking.stackexchange.txt.xz", "rt", encoding="utf-8"
        ) as file:
            lines_read = file.read().rstrip("\n").split("\n")
        chosen = lines_read[:-COOKING_TEST] if part == "train" else lines_read[-COOKING_TEST:]
        for line in chosen:
            words = line.split()
            labels = [word for word in words if word.startswith("__label__")]
            yield {"title": " ".join(words[len(labels) :]), "labels": labels}
    elif name != "gutenberg_lcsh":
        with lzma.open(data / name / f"{part}.jsonl.xz", "rt", encoding="utf-8") as records:
            yield from map(json.loads, records)
    else:
        split = HashSplit(0.2, 0)
        file = data / name / "docs.tsv.xz"
        with lzma.open(file, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                number, title, author, _, labels = line.rstrip("\n").split("\t")
                if split.is_held_out(number) == (part == "test"):
                    row = {"title": title, "author": author}
                    yield {**row, "labels": [each.strip() for each in labels.split(" | ")]}


def write_rows(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Write both parts of a set as JSON lines."""
    files = {part: folder / f"{name}-{part}.jsonl" for part in ("train", "test")}
    for part, file in files.items():
        rows = rows_of(name, options.data, part)
        if options.part == "validation":
            split, wanted = HashSplit(0.2, 1), part == "test"
            every = enumerate(rows_of(name, options.data, "train"))
            rows = (row for i, row in every if split.is_held_out(str(i)) == wanted)
        limit = options.rows if part == "train" and options.rows else None
        file.write_text("".join(json.dumps(row) + "\n" for row in islice(rows, limit)))
    return files


def options_of(those: tuple[Any, list[str], Any], last: str) -> tuple[Any, dict[str, Any]]:
    """Return the options of the build and of the training, up to the one called `last`.

    those: see `described`.
    """
    language, plain, weighted = those
    text: dict[str, Any] = {}
    params: dict[str, Any] = {}
    for option, (of_text, of_solver) in {AUTO: ({}, {}), **OPTIONS}.items():
        text |= of_text
        params |= of_solver
        if option == last:
            break
    fields = text.pop("fields", False) and weighted
    text.pop("names", None)
    if "language" in text:
        text["language"] = language
    return {"text_fields": fields or plain, "text": text}, params


def measure_option(
    name: str, option: str, files: dict[str, Path], folder: Path, names: Path | None
) -> tuple[dict[str, Any], Dataset]:
    """Return the figures of one option, and the data set. names: of the labels, for a ranker."""
    reading, params = options_of(described(name, files), option)
    began = time.process_time()
    data = build("jsonl", files, folder / f"{name}-{option}", BuildOptions.from_dict(reading))
    if names is not None:
        data = set_label_texts(data, read_label_texts(names))
    built = time.process_time()
    out = folder / f"{name}-{option}-model"
    auto = DEFAULT_MEASURE if option == AUTO else None
    spec = TrainSpec(
        str(data.path), params=params, pool="threads", ks=KS, rank=names is not None, auto=auto
    )
    trained = train(spec, run_dir=folder / f"{name}-{option}-run", out=out)
    done = time.process_time()
    rebuilt = folder / f"{name}-{option}-run" / REBUILT  # if `auto` chose options of the texts
    data = Dataset.open(rebuilt) if rebuilt.exists() else data
    model = Model.open(out, verify=False)
    assert model.text is not None
    texts = [
        document({each: row.get(each) for each in model.text_fields}, model.text_fields)
        for row in islice(_rows(files["test"]), 5000)
    ]
    model.text.transform(texts[:1])
    started = time.process_time()
    model.text.transform(texts)
    seconds = time.process_time() - started
    figures = {
        each: round(100 * trained.measures[each], 2) for each in SHOWN if each in trained.measures
    }
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return {
        **figures,
        "features": model.n_features,
        "cpu_build": round(built - began, 1),
        "cpu_train": round(done - built, 1),
        "model_mb": round(size / 1e6, 1),
        "texts_per_second": round(len(texts) / max(seconds, 1e-9)),
        **({"chosen": trained.report["auto"]["text"]["chosen"]} if auto else {}),
    }, data


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file."""
    with open(file, encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def compare(
    name: str,
    options: argparse.Namespace,
    files: dict[str, Path],
    folder: Path,
    data: dict[str, Dataset],
    figures: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the rows of all programs on one set. data, figures: by option."""
    fields = described(name, files)[1]
    texts = {
        part: [" ".join(row[each] for each in fields) for row in _rows(file)]
        for part, file in files.items()
    }
    documents = [
        document({each: row[each] for each in fields}, fields) for row in _rows(files["test"])
    ]
    ours = []
    for option in data:
        top = Predictor(folder / f"{name}-{option}-model").predict(documents, K).labels
        ours.append(
            {"program": f"xcray, {option}", "top": top, "cpu_s": figures[option]["cpu_train"]}
        )
    env, cache = options.env or folder / "env", options.cache or folder / "cache"
    cs = [float(each) for each in options.cs.split(",")]
    return compare_peers(name, data, ours, texts, options.peers.split(","), env, cache, cs)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures of every set and option."""
    out: dict[str, Any] = {}
    for name in options.sets.split(","):
        files = write_rows(name, options, folder)
        figures: dict[str, Any] = {}
        data: dict[str, Dataset] = {}
        for option in options.options.split(","):
            if (option == "fields" and described(name, files)[2] is None) or (
                option == "names" and name not in NAMES
            ):
                continue
            names = options.data / NAMES[name] if option == "names" else None
            figures[option], data[option] = measure_option(name, option, files, folder, names)
            print(name, option, figures[option], flush=True)
        if options.peers:
            figures["peers"] = compare(name, options, files, folder, data, figures)
        out[name] = figures
    return out


def main() -> None:
    """Measure and print the JSON."""
    run_benchmark(
        measure,
        __doc__,
        quick={"sets": "generated", "options": "default,stems,fields"},
        sets={"default": "cooking,gutenberg_lcsh,gnd_tibkat_text"},
        options={"default": ",".join(OPTIONS)},
        rows={"type": int, "default": 0},
        part={"choices": ("validation", "test"), "default": "test"},
        peers={"default": "", "help": "programs that read the features of every option"},
        cs={"default": ",".join(map(str, CS)), "help": "values of C that are tried for the peers"},
        env={"type": Path, "help": "the peers' environment; default: a temporary one"},
        cache={"type": Path, "help": "keeps the runs of the peers; default: a temporary directory"},
    )


if __name__ == "__main__":
    main()
