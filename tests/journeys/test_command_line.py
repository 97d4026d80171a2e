"""The command line from data set to predictions, with an interrupted training, and over REST."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numba
import pytest

from tests.support.waiting import until
from xcray import training
from xcray.cli.main import main
from xcray.cli.setup.doctor import check_training
from xcray.kernels.compilation import CompilationCount
from xcray.system import processes

WORDS = {
    "fruit": "apple pear plum cherry",
    "tool": "hammer saw drill file",
    "bird": "owl robin crow finch",
    "file": "csv json text",
}
# Seconds until a wait fails: a new process may have to compile the kernels first.
PATIENCE = 1800.0


def lines() -> str:
    """Return documents in which three of four words belong to the label."""
    out = []
    for i in range(120):
        label = list(WORDS)[i % len(WORDS)]
        own, other = WORDS[label].split(), WORDS[list(WORDS)[(i + 1) % len(WORDS)]].split()
        text = f"{own[i % len(own)]} {own[(i // 4) % len(own)]} {label} {other[i % len(other)]}"
        out.append(json.dumps({"text": text, "labels": [label, "thing"] if i % 3 else [label]}))
    return "\n".join(out) + "\n"


def run(line: str) -> int:
    """Run a command line in this process and return its exit status."""
    return main(shlex.split(line))


class Shell:
    """Runs commands in a folder and returns what they print."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def json(self, line: str) -> Any:
        """Return the JSON document of a command that succeeds without a word on stderr."""
        self._capsys.readouterr()
        assert run(f"{line} --json") == 0
        captured = self._capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    def out(self, line: str, status: int = 0) -> str:
        """Return what a command prints to stdout."""
        self._capsys.readouterr()
        assert run(line) == status
        return self._capsys.readouterr().out

    def err(self, line: str, status: int) -> str:
        """Return what a failing command prints to stderr."""
        self._capsys.readouterr()
        assert run(line) == status
        return self._capsys.readouterr().err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts, and the data set and model that the commands made from them."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "texts.jsonl").write_text(lines())
    build = f"data build jsonl {folder}/texts.jsonl {folder}/data --test-fraction 0.2"
    assert run(build) == 0
    assert run(f"train {folder}/data --out {folder}/model") == 0
    return folder


@pytest.fixture
def shell(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """Return a shell in that folder."""
    monkeypatch.chdir(folder)
    return Shell(folder, capsys)


def test_a_data_set_is_built_and_shown(shell: Shell, tmp_path: Path) -> None:
    document = shell.json("data show data --verify")
    assert (document["n_labels"], document["text"], document["skipped"]) == (5, True, 0)
    assert sum(split["n_rows"] for split in document["splits"].values()) == 120
    assert document["frequent_labels"][0][0] == "thing"
    shown = shell.out("data show data")
    assert "content hash" in shown
    assert "thing (" in shown
    sizes = "--option synthetic.rows=50 --option synthetic.labels=7 --option synthetic.features=30"
    document = shell.json(f"data build synthetic {tmp_path}/out {sizes} --seed 3")
    rows = sum(split["n_rows"] for split in document["splits"].values())
    assert (document["n_labels"], document["n_features"], rows) == (7, 30, 50)


def test_bad_lines_are_listed_or_skipped(shell: Shell, tmp_path: Path) -> None:
    bad = tmp_path / "bad.svm"
    bad.write_text("1 1:0.5\n2 1:x\n1 0:1\n")
    err = shell.err(f"data build svmlight {bad} {tmp_path}/out", status=2)
    first, second = err.splitlines()[1:3]
    assert first.startswith("error SVM_BAD_VALUE: bad.svm:2:")
    assert second.startswith("  bad.svm:3:")
    assert not (tmp_path / "out").exists()
    assert shell.json(f"data build svmlight {bad} {tmp_path}/out --skip-bad")["skipped"] == 2


@pytest.mark.parametrize(
    "inputs",
    ["svmlight out", "pydocs in out", "csv a b out", "nonsense in out", "csv missing.csv out"],
)
def test_missing_input_is_reported(
    shell: Shell, inputs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert json.loads(shell.err(f"data build {inputs} --json", status=2))["message"]
    assert list(tmp_path.iterdir()) == []


def test_a_training_and_its_errors(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "again"
    again = shell.json(f"train data --out {out} -p lam=0.01 --pool serial")
    # another pool gives the same bytes
    assert shell.json("models show model")["sha256"] == again["sha256"]
    assert set(again["measures"]) >= {"P@1", "P@3", "nDCG@5"}
    assert not (tmp_path / "again.run").exists()
    assert "exists already" in shell.err(f"train data --out {out}", status=1)
    assert "lam must be" in shell.err(f"train data --out {tmp_path}/x -p lam=-1", status=2)
    assert "DIR" in shell.err("train --solver dsmlr", status=2)


def test_predictions_of_texts_and_lines(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    document = shell.json("predict model 'an apple and a pear' owl -k 2")["predictions"]
    assert [len(answer["labels"]) for answer in document] == [2, 2]
    found = [{one["label"] for one in answer["labels"]} & {"fruit", "bird"} for answer in document]
    assert found == [{"fruit"}, {"bird"}]
    reader, writer = os.pipe()
    os.write(writer, b"an apple and a pear\nowl\n")
    os.close(writer)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert shell.json("predict model -k 2")["predictions"] == document
    assert shell.out("predict model owl").splitlines()[0] == "owl"


def test_predictions_of_the_rows_of_a_file(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 3} {i % 3 + 1}:1 4:0.1\n" for i in range(30))
    (tmp_path / "rows.svm").write_text(rows)
    shell.json("data build svmlight rows.svm data")
    shell.json("train data --out model")
    answers = shell.json("predict model --file rows.svm -k 1")["predictions"]
    assert [each["labels"][0]["label"] for each in answers] == [str(i % 3) for i in range(30)]
    assert "no text pipeline" in shell.err("predict model 'some text'", status=2)


def test_an_explanation_sums_to_the_score(shell: Shell) -> None:
    document = shell.json("explain model 'apple pear' --label fruit")
    parts = sum(part["contribution"] for part in document["contributions"])
    assert document["label"] == "fruit"
    assert document["score"] == pytest.approx(parts + document["rest"] + document["bias"], abs=1e-9)
    assert {part["feature"] for part in document["contributions"]} <= {"apple", "pear"}
    assert "no such" in shell.err("explain model 'apple pear' --label 'no such'", status=2)


def test_models_are_described_and_compared(shell: Shell, tmp_path: Path) -> None:
    assert shell.out("models card model").startswith("# Model card")
    document = shell.json("models diff model model")
    assert (document["same_content"], document["changed"], document["added"]) == (True, [], [])
    shell.json(f"data build jsonl texts.jsonl {tmp_path}/all --like data")  # no held-out rows
    shell.json(f"train {tmp_path}/all --out {tmp_path}/worse -p lam=100")
    text = shell.out(f"models diff model {tmp_path}/worse")
    assert "changed" in text
    assert "P@1" not in text  # only one of them has measures
    compare = f"models compare model {tmp_path}/worse --dataset data --gate"
    assert shell.out(f"{compare} 'P@1 >= -1'", status=1).startswith("FAILED: P@1 >= -1, measured")
    text = shell.out(f"{compare} 'P@1 >= -100'")
    assert text.startswith("passed: P@1 >= -100")
    assert "PSP@5" in text
    assert "recall@5" not in text
    assert "recall@5" in shell.out(f"{compare} 'P@1 >= -100' --all")
    assert "labels that lost right answers: " in text


# in separate processes, which get real signals


def command(line: str, folder: Path | None = None) -> subprocess.Popen[str]:
    """Start a command in its own process."""
    words = [sys.executable, "-m", "xcray", *shlex.split(line)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=folder)


# `xcray ARGUMENTS`, interrupted when it has solved its first labels.
INTERRUPTED = """
import os, signal, sys
from xcray.cli.main import main
from xcray.training.block_store import BlockStore
add = BlockStore.add

def add_first(self, block):
    BlockStore.add = add
    add(self, block)
    os.kill(os.getpid(), signal.SIGINT)

BlockStore.add = add_first
sys.exit(main())
"""


def test_an_interrupted_training_resumes_to_the_same_model(shell: Shell, tmp_path: Path) -> None:
    sizes = "--option synthetic.rows=2000 --option synthetic.labels=1000 --option synthetic.features=1000"
    shell.json(f"data build synthetic {tmp_path}/data {sizes}")
    work = f"train {tmp_path}/data --out {tmp_path}/model --pool serial -p eps=0.0001"
    words = [sys.executable, "-c", INTERRUPTED, *shlex.split(work)]
    begun = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    parts, err = tmp_path / "model.run", begun.stderr
    assert begun.returncode == 130, err
    assert "stopping" in err
    assert "error STOPPED" in err
    assert str(parts) in err
    assert not (tmp_path / "model").exists()
    # A resumed training differs from the one above in nothing but the process.
    assert " kept" in shell.err(work, status=0)
    resumed = json.loads((tmp_path / "model" / "manifest.json").read_text())["sha256"]
    whole = shell.json(f"train {tmp_path}/data --out {tmp_path}/whole -p eps=0.0001")
    assert whole["sha256"] == resumed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a service with the threaded pool for the tests of this file, and yield its URL."""
    home = tmp_path_factory.mktemp("served")
    process = command(f"serve --port 0 --home {home} --pool threads --log-level error --json")
    try:
        until(lambda: (home / "serve.json").is_file() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[1]
        yield str(json.loads((home / "serve.json").read_text())["url"])
    finally:
        family = processes.find_descendants([process.pid])
        process.terminate()
        out, _ = process.communicate(timeout=PATIENCE)
        left = processes.wait_for_exit(family, 60.0)
        processes.kill_processes(left)
    assert process.returncode == 0
    assert json.loads(out)["docs"].endswith("/docs")
    assert left == set()


def test_from_an_upload_to_a_model_over_rest(
    shell: Shell, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCRAY_SERVER", server)
    rows = [json.loads(line) for line in lines().splitlines()]
    fields = ({"words": row["text"], "tags": "/".join(row["labels"])} for row in rows)
    things = "".join(json.dumps(each) + "\n" for each in fields)
    (shell.folder / "things.jsonl").write_text(things + "no row\n")
    upload = "data upload jsonl things.jsonl --text-fields words --label-field tags"
    dataset = shell.json(f"{upload} --label-separator / --test-fraction 0.2 --skip-bad")
    assert (dataset["name"], dataset["stats"]["skipped"]) == ("things", 1)
    assert dataset["status"] == "READY"
    assert dataset["id"] in shell.out("data list")
    submit = f"jobs submit {dataset['id']} --model things -p lam=0.01 --key once"
    submit += " --timeout-seconds 90m --expires-seconds 2d --max-attempts 2"
    job = shell.json(submit)
    assert (job["timeout_seconds"], job["max_attempts"]) == (5400, 2)
    assert job["expires"] > job["created"]
    assert job["spec"]["params"]["lam"] == 0.01
    assert "SUCCEEDED" in shell.out(f"jobs watch {job['id']}")
    assert shell.json(submit)["id"] == job["id"]  # the same idempotency key returns the same job
    local = json.loads((shell.folder / "model" / "manifest.json").read_text())["sha256"]
    assert shell.json(f"jobs get {job['id']}")["result"]["sha256"] == local
    several = "--status FAILED --status SUCCEEDED --kind train --model things --since 1h"
    for listed, options in (
        (True, "--status SUCCEEDED"),
        (True, several),
        (True, f"--since 2000-01-01T00:00:00Z --dataset {dataset['id']}"),
        (False, "--name others"),
        (False, "--kind predict --since 1h"),
    ):
        assert (job["id"] in shell.out(f"jobs list {options}")) == listed
    for wrong in ("--since yesterday", "--since -1h", "--status DONE", "--since TODAY"):
        shell.err(f"jobs list {wrong}", status=2)
    log = shell.json(f"jobs logs {job['id']}")
    assert log["job"] == job["id"]
    assert shell.out(f"jobs logs {job['id']} --follow").splitlines() == log["lines"]
    assert shell.out("models list").splitlines()[1].startswith("things\t1\tlatest=1")
    assert shell.json("models alias things best 1")["aliases"]["best"] == 1
    assert shell.json("models show things@best")["version"] == 1
    assert shell.out("models card things:1").startswith("# Model card")


def test_predictions_over_rest_equal_those_of_the_directory(shell: Shell, server: str) -> None:
    request = "'apple pear' 'owl crow' -k 3"
    here = shell.json(f"predict model {request}")["predictions"]
    assert shell.json(f"predict things {request} --server {server}")["predictions"] == here
    here = shell.json("explain model 'apple pear'")
    there = shell.json(f"explain things 'apple pear' --server {server}")
    for name in ("label", "score", "bias", "contributions"):
        assert there[name] == here[name]


def test_server_errors_are_printed_like_local_errors(shell: Shell, server: str) -> None:
    err = shell.err(f"jobs get job_nothere --server {server} --json", status=2)
    assert json.loads(err)["code"] == "NOT_FOUND"
    err = shell.err(f"predict nothere text --server {server}", status=2)
    assert err.startswith("error NOT_FOUND: ")
    err = shell.err("jobs list --server http://127.0.0.1:9 --json", status=1)
    assert json.loads(err)["code"] == "NO_SERVER"
    assert "PUBLIC_ADDRESS" in shell.err("serve --host 0.0.0.0 --home home", status=2)
    assert "--pool" in shell.err("serve --pool nonsense --home home", status=2)


def test_doctor(shell: Shell, tmp_path: Path) -> None:
    document = shell.json(f"doctor --home {tmp_path} --port 0")
    assert document["ok"]
    status = {check["name"]: check["status"] for check in document["checks"]}
    assert status["training"] in ("ok", "warn")


def test_doctor_tells_compilation_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run after installation compiles kernels; that does not make the machine slow."""

    def on_end(self: CompilationCount, event: Any) -> None:
        self.n_kernels, self.seconds = 2, 40.0

    def compile_and_train(train: Any, *args: Any, **kwargs: Any) -> Any:
        numba.njit(lambda x: x + 1)(1)
        return train(*args, **kwargs)

    monkeypatch.setattr(CompilationCount, "on_end", on_end)
    monkeypatch.setattr(training, "train", partial(compile_and_train, training.train))
    check = check_training()
    assert check.status == "ok"
    assert ", 40.0 of them to compile, once, for 500 rows" in check.found


@pytest.mark.drill
def test_the_small_demo_answers_beside_files_that_are_named_like_modules(tmp_path: Path) -> None:
    (tmp_path / "six.py").write_text("raise SystemExit('a script of the user')\n")
    demo = command("demo --small --json", tmp_path)  # on Ray, whose programs import six
    out, err = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0, err
    result = json.loads(out)
    assert result["dataset"]["stats"]["splits"]["train"]["n_rows"] < 20_000
    best = [answer["labels"][0]["label"] for answer in result["answers"]]
    assert (best[0].split(".")[0], best[1]) == ("csv", "gzip")


@pytest.mark.drill
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    home = tmp_path / "home"
    demo = command(f"demo --pool threads --home {home}")
    until(lambda: (home / "serve.json").is_file() or demo.poll() is not None)
    # One child process builds the data set.
    until(lambda: len(processes.find_descendants([demo.pid])) >= 2 or demo.poll() is not None)
    family = processes.find_descendants([demo.pid])
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130, err
    assert len(family) >= 2
    assert processes.wait_for_exit(family, 0.0) == set()
    assert "by force" not in out
    assert err.endswith("error INTERRUPTED: interrupted\n")
