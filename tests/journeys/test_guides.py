"""The commands of the guides run in the order of their pages, on small files with their names."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.printed import ROOT, lines, words_of
from xcray.cli.main import main

PAGES = (
    "README.md",
    "docs/coming_from.md",
    "docs/formats.md",
    "docs/germeval.md",
    "docs/label-groups.md",
    "docs/measures.md",
    "docs/predicting.md",
    "docs/sharding.md",
    "docs/text.md",
    "docs/thresholds.md",
    "docs/training.md",
    "docs/updates.md",
    "docs/vocabularies.md",
)
# names of labels in commands
LABELS = ("csv", "json", "art", "music", "law", "A", "B", "LABEL", "OLD", "ID", "extra")
# another machine, a service, a download, all kernels, many labels, or a file of another program
ELSEWHERE = re.compile(
    r"s3://|URL|xcray (?:serve|jobs|doctor|compile-kernels)|label-sets|set:|--pool ray"
    r"|MNIST|100,400|(?i:cifar10)|NAME@|amazon\.json"
)


def write_json(path: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file."""
    with Path(path).open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_files() -> None:
    """Write the files that the guides name."""
    rows = []
    for i in range(1320):
        label = LABELS[i % 11] if i % 7 else LABELS[i % 5]
        text = f"read rows {LABELS[i % 11]} word{i % 89} word{i % 97}"
        lang = ("de", "en")[i % 2]
        row = {"id": str(i), "text": text, "title": f"a {label} row", "abstract": text}
        rows.append({**row, "lang": lang, "language": lang, "labels": [label]})
    train, test = rows[:880], rows[880:]
    for name, each in (("train", train), ("test", test), ("rows", test), ("dev", test)):
        write_json(f"{name}.jsonl", each)
    write_json("new.jsonl", ({**row, "id": f"new {row['id']}"} for row in rows[:5]))
    write_json("corrections.jsonl", [{"row": "5", "labels": ["csv"]}])
    write_json("labels.jsonl", ({"id": label, "name": label} for label in LABELS))
    write_json(
        "corpus.jsonl", ({"text": row["text"], "subjects": [{"uri": "u:1"}]} for row in train)
    )
    for name, each in (("train.csv", train), ("test.csv", test)):
        table = [(row["title"], row["text"], f"{row['labels'][0]};law") for row in each]
        write_table(name, ("Titel", "Zusammenfassung", "Schlagwörter"), table)
    columns = ("text", "labels", "language")
    write_table("rows.csv", columns, [(row["text"], *row["labels"], row["lang"]) for row in test])
    texts = {
        "ids.txt": "3\n7\n",
        "vocabulary.tsv": "".join(f"{label}\t{label}\n" for label in LABELS),
        "train.txt": "".join(f"__label__a {row['text']}\n" for row in train),
        "corpus.tsv": "".join(f"{row['text']}\t<u:1> <u:2>\n" for row in train),
        "trn_X_Xf.txt": "2 3\n0:1 2:0.5\n1:1\n",
        "trn_X_Y.txt": "2 2\n0:1\n1:1\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    pq.write_table(pa.table({"text": [row["text"] for row in test]}), "rows.parquet")


def run(command: str) -> None:
    """Run a command."""
    assert main(command.split()) == 0, command


def write_models() -> None:
    """Write the data sets and models that the guides name."""
    run("data build jsonl train.jsonl DIR --test test.jsonl --option id_field=id")
    run("train DIR --out OLD --calibrate --keep-duals --pool serial")
    run("labels remove OLD extra --out LACKS")
    run("data delta DIR CHANGED --add new.jsonl")
    for name in ("DATA", "TEXT", "DATASET"):
        shutil.copytree("DIR", name)
    for name in ("MODEL", "OTHER", "A", "B", "C", "NEW"):
        shutil.copytree("OLD", name)
    run("models export OLD liblinear heart.model")
    run("models export OLD npz w.npz")


def output_of(words: list[str]) -> str:
    """Return the directory that a command makes, which must not exist before; else ""."""
    if words[:2] == ["data", "build"]:
        return words[4]
    if words[:2] == ["models", "import"]:
        return words[4]
    for option in ("--out", "-o"):
        if option in words:
            return words[words.index(option) + 1]
    return "model" if words[0] == "train" else "compare"


@pytest.mark.drill
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_guide_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XCRAY_HOME", str(tmp_path / "home"))
    write_files()
    write_models()
    commands = [line for line in lines((ROOT / page).read_text()) if not ELSEWHERE.search(line)]
    assert commands
    for command in commands:
        words = words_of(command)
        shutil.rmtree(output_of(words), ignore_errors=True)
        if words[:2] == ["labels", "add"]:  # a model that lacks a label
            words[2] = "LACKS"
        assert main(words) == 0, (command, capsys.readouterr().err)
