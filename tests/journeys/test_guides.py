"""The commands of the guides run in the order of their pages, on small files with their names.

Commands for a service, its keys and object storage use a service and an S3 server of the test.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.live_service import serving, settings_for
from tests.support.printed import ROOT, lines, pages, words_of
from xcray.cli.main import main
from xcray.cli.service import health
from xcray.jobs.store.jobs import JobSubmission
from xcray.jobs.store.tokens import create_token
from xcray.service.app import create_app

if TYPE_CHECKING:
    from tests.support.s3 import FaultProxy

PAGES = (
    "README.md",
    "docs/coming_from.md",
    "docs/ds-mlr.md",
    "docs/formats.md",
    "docs/germeval.md",
    "docs/label-groups.md",
    "docs/kubernetes.md",
    "docs/measures.md",
    "docs/operations.md",
    "docs/predicting.md",
    "docs/security.md",
    "docs/serving.md",
    "docs/sharding.md",
    "docs/store.md",
    "docs/text.md",
    "docs/thresholds.md",
    "docs/training.md",
    "docs/updates.md",
    "docs/vocabularies.md",
    "docs/clusters.md",  # last: its Ray runs until the end of the file
)
# names of labels in commands
LABELS = ("csv", "json", "art", "music", "law", "A", "B", "LABEL", "OLD", "ID", "extra")
# run by other tests, or a Ray of its own, a download, many labels, or a file of another program
ELSEWHERE = re.compile(
    r"xcray (?:serve|demo|doctor|compile-kernels)|--pool ray(?!.*(?:--values|10\.0\.0\.1))|MNIST|100,400|(?i:cifar10)|amazon\.json"
)


# words of commands that stand for something else
PLACEHOLDER = re.compile(
    r"\b(?:URL|JOB|HASH)\b|key_\.\.\.|http://127.0.0.1:8000|10.0.0.1:6379|/var/lib/xcray|/backups|//bucket\b"
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files, data sets and models that the guides name."""
    folder = tmp_path_factory.mktemp("guides")
    with chdir(folder):
        write_files()
        run("data build jsonl train.jsonl DIR --test test.jsonl --id-field id")
        run("train DIR --out OLD --calibrate --keep-duals --pool serial")
        run("labels remove OLD extra --out LACKS")
        run("data delta DIR CHANGED --add new.jsonl")
        for name in ("DATA", "TEXT", "DATASET"):
            shutil.copytree("DIR", name)
        for name in ("MODEL", "OTHER", "A", "B", "C", "NEW", "model", "home/trained/news"):
            shutil.copytree("OLD", name)
        run("models export OLD liblinear heart.model")
        run("models export OLD npz w.npz")
    return folder


@contextmanager
def service(home: Path) -> Iterator[dict[str, str]]:
    """Serve models, a data set and a job; yield the words of commands that mean something of it."""
    app = create_app(settings_for(home))
    state = app.state.app_state
    for name in ("docs", "news"):
        for _ in range(5):
            shutil.copytree("OLD", "staged")
            state.registry.publish(name, "staged")
        state.registry.aliases.set(name, "prod", 3)
    data = state.store.datasets.add("tagged", str(Path("DIR").absolute()))
    job, _ = state.store.jobs.submit(JobSubmission({}, "job", dataset_id=data.id))
    keys = [create_token() for _ in range(2)]
    for key in keys:
        state.store.keys.add("default", "ops", ["admin"], key.digest, key_id=key.key_id)
    with serving(app) as url:
        yield {
            "URL": url,
            "http://127.0.0.1:8000": url,
            "SECRET": keys[0].token,
            "JOB": job.id,
            "key_...": keys[1].key_id,
            "HASH": state.registry.published_sha256("news", 3),
        }


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
    page: str,
    folder: Path,
    tmp_path: Path,
    proxy: FaultProxy,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(shutil.copytree(folder, tmp_path, dirs_exist_ok=True))
    monkeypatch.setenv("XCRAY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(health, "TIMEOUT_SECONDS", 600.0)
    bucket = page.removeprefix("docs/")
    proxy.client.create_bucket(Bucket=bucket.lower())
    commands = [line for line in lines((ROOT / page).read_text()) if not ELSEWHERE.search(line)]
    assert commands
    with service(tmp_path / "home") as meanings:
        if any("10.0.0.1:6379" in command for command in commands):
            meanings["10.0.0.1:6379"] = request.getfixturevalue("ray")
        meanings |= {"/var/lib/xcray": "home", "/backups": ".", "//bucket": f"//{bucket.lower()}"}
        monkeypatch.setenv("XCRAY_SERVER", meanings["URL"])
        monkeypatch.setenv("XCRAY_PORT", meanings["URL"].rpartition(":")[2])
        monkeypatch.setenv("XCRAY_KEY", meanings["SECRET"])
        for command in commands:
            words = words_of(PLACEHOLDER.sub(lambda match: meanings[match[0]], command))
            shutil.rmtree(output_of(words), ignore_errors=True)
            if words[:2] == ["labels", "add"]:  # a model that lacks a label
                words[2] = "LACKS"
            assert main(words) == 0, (command, capsys.readouterr().err)


def test_every_page_with_commands_is_run() -> None:
    found = {
        name
        for name, text in pages().items()
        if name.startswith(("README", "docs/"))
        and any(not ELSEWHERE.search(line) for line in lines(text))
    }
    tutorials = {"docs/tutorials/cluster.md", "docs/tutorials/own_csv.md"}  # in test_code_blocks
    assert found - tutorials - {"docs/add_a_solver.md"} == set(PAGES)  # a package of the reader
