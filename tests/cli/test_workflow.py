"""The command line from data set to predictions, with an interrupted training, and over REST."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numba
import pytest

from xcray import training
from xcray.cli.main import main
from xcray.cli.setup.doctor import check_training
from xcray.cli.terminal import processes
from xcray.cli.terminal.compilation import CompilationNote

WORDS = {
    "fruit": "apple pear plum cherry",
    "tool": "hammer saw drill file",
    "bird": "owl robin crow finch",
    "file": "csv json text",
}


def lines() -> str:
    """Return documents in which three of four words belong to the label."""
    out = []
    for i in range(120):
        label = list(WORDS)[i % len(WORDS)]
        own, other = WORDS[label].split(), WORDS[list(WORDS)[(i + 1) % len(WORDS)]].split()
        text = f"{own[i % len(own)]} {own[(i // 4) % len(own)]} {label} {other[i % len(other)]}"
        out.append(json.dumps({"text": text, "labels": [label, "thing"] if i % 3 else [label]}))
    return "\n".join(out) + "\n"


def run(*arguments: Any) -> int:
    return main([str(each) for each in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts, and the data set and model that the commands made from them."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "texts.jsonl").write_text(lines())
    assert (
        run(
            "data",
            "build",
            "jsonl",
            folder / "texts.jsonl",
            folder / "data",
            "--test-fraction",
            0.2,
        )
        == 0
    )
    assert run("train", folder / "data", "--out", folder / "model", "--name", "things") == 0
    return folder


def read(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the JSON document printed to stdout; check that stderr is empty."""
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_data_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "info", folder / "data", "--verify", "--json") == 0
    document = read(capsys)
    assert (document["n_labels"], document["text"], document["skipped"]) == (5, True, 0)
    assert sum(split["n_rows"] for split in document["splits"].values()) == 120
    assert document["frequent_labels"][0][0] == "thing"
    assert run("data", "info", folder / "data") == 0
    shown = capsys.readouterr().out
    assert "content hash" in shown
    assert "thing (" in shown


def test_data_check_lists_bad_lines(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "check", "jsonl", folder / "texts.jsonl") == 0
    capsys.readouterr()
    bad = tmp_path / "bad.svm"
    bad.write_text("1 1:0.5\n2 1:x\n1 0:1\n")
    assert run("data", "check", "svmlight", bad, "--json") == 2
    document = read(capsys)
    assert (
        document["rows"],
        document["n_bad"],
        [error["line"] for error in document["errors"]],
    ) == (
        1,
        2,
        [2, 3],
    )
    assert run("data", "check", "svmlight", bad) == 2
    assert "bad.svm:2:" in capsys.readouterr().out
    assert run("data", "build", "svmlight", bad, tmp_path / "out") == 2
    assert capsys.readouterr().err.splitlines()[1].startswith("error ")
    assert not (tmp_path / "out").exists()
    assert run("data", "build", "svmlight", bad, tmp_path / "out", "--skip-bad", "--json") == 0
    assert read(capsys)["skipped"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["svmlight", "out"],
        ["pydocs", "in", "out"],
        ["csv", "a", "b", "out"],
        ["nonsense", "in", "out"],
        ["csv", "missing.csv", "out"],
    ],
)
def test_data_build_reports_missing_input(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("data", "build", *arguments, "--json") == 2
    assert json.loads(capsys.readouterr().err)["message"]
    assert list(tmp_path.iterdir()) == []


def test_options_reach_nested_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["-o", "synthetic.rows=50", "-o", "synthetic.labels=7", "-o", "synthetic.features=30"]
    assert run("data", "build", "synthetic", tmp_path / "out", *options, "--seed", 3, "--json") == 0
    document = read(capsys)
    assert (
        document["n_labels"],
        document["n_features"],
        sum(s["n_rows"] for s in document["splits"].values()),
    ) == (7, 30, 50)


def test_train_output_and_errors(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            "train",
            folder / "data",
            "--out",
            tmp_path / "again",
            "-p",
            "lam=0.01",
            "--pool",
            "serial",
            "--json",
        )
        == 0
    )
    again = read(capsys)
    assert run("models", "show", folder / "model", "--json") == 0
    assert read(capsys)["sha256"] == again["sha256"]  # another pool gives the same bytes
    assert set(again["measures"]) >= {"P@1", "P@3", "nDCG@5"}
    assert not (tmp_path / "again.run").exists()
    assert run("train", folder / "data", "--out", tmp_path / "again") == 1
    assert "exists already" in capsys.readouterr().err
    assert run("train", folder / "data", "--out", tmp_path / "other", "-p", "lam=-1") == 2
    assert "lam must be" in capsys.readouterr().err


def test_train_lists_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--parameters") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["parameter", "default", "range", "meaning"]
    assert {"lam", "C", "eps"} <= {row[0] for row in rows}
    assert run("train", "--solver", "dsmlr") == 2
    assert "no data set given" in capsys.readouterr().err


def test_predict_texts_and_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", folder / "model", "an apple and a pear", "owl", "-k", 2, "--json") == 0
    document = read(capsys)["predictions"]
    assert [len(answer["labels"]) for answer in document] == [2, 2]
    assert [
        {one["label"] for one in answer["labels"]} & {"fruit", "bird"} for answer in document
    ] == [
        {"fruit"},
        {"bird"},
    ]
    reader, writer = os.pipe()
    os.write(writer, b"an apple and a pear\nowl\n")
    os.close(writer)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run("predict", folder / "model", "-k", 2, "--json") == 0
    assert read(capsys)["predictions"] == document
    assert run("predict", folder / "model", "owl") == 0
    assert capsys.readouterr().out.splitlines()[0] == "owl"


def test_predict_rows_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i % 3} {i % 3 + 1}:1 4:0.1\n" for i in range(30))
    (tmp_path / "rows.svm").write_text(rows)
    assert run("data", "build", "svmlight", tmp_path / "rows.svm", tmp_path / "data", "--json") == 0
    assert run("train", tmp_path / "data", "--out", tmp_path / "model", "--json") == 0
    capsys.readouterr()
    assert (
        run("predict", tmp_path / "model", "--file", tmp_path / "rows.svm", "-k", 1, "--json") == 0
    )
    assert [answer["labels"][0]["label"] for answer in read(capsys)["predictions"]] == [
        str(i % 3) for i in range(30)
    ]
    assert run("predict", tmp_path / "model", "some text") == 2
    assert "no text pipeline" in capsys.readouterr().err


def test_explain_sums_to_the_score(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", folder / "model", "apple pear", "--label", "fruit", "--json") == 0
    document = read(capsys)
    parts = sum(part["contribution"] for part in document["contributions"])
    assert document["label"] == "fruit"
    assert document["score"] == pytest.approx(parts + document["rest"] + document["bias"], abs=1e-9)
    assert {part["feature"] for part in document["contributions"]} <= {"apple", "pear"}
    assert run("explain", folder / "model", "apple pear", "--label", "no such") == 2
    assert "no such" in capsys.readouterr().err


def test_models_card_and_diff(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("models", "card", folder / "model") == 0
    assert capsys.readouterr().out.startswith("# Model card")
    assert run("models", "diff", folder / "model", folder / "model", "--max-loss", 0, "--json") == 0
    document = read(capsys)
    assert (document["same_content"], document["changed"], document["added"]) == (True, [], [])
    assert (
        run("train", folder / "data", "--out", tmp_path / "worse", "-p", "lam=100", "--json") == 0
    )
    capsys.readouterr()
    # P@1 fell by more than --max-loss.
    assert run("models", "diff", folder / "model", tmp_path / "worse", "--max-loss", 1) == 1
    assert "changed" in capsys.readouterr().out


# interruption and resumption, in a separate process for real signals


# Seconds until a wait fails: a new process may have to compile the kernels first.
PATIENCE = 600.0


def wait_for(wish: Callable[[], bool]) -> None:
    """Wait until `wish` returns a true value."""
    deadline = time.monotonic() + PATIENCE
    while not wish():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.02)


def command(*arguments: Any) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "xcray", *(str(each) for each in arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_interrupted_training_resumes_to_the_same_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["synthetic.rows=12000", "synthetic.labels=1500", "synthetic.features=4000"]
    assert (
        run(
            "data",
            "build",
            "synthetic",
            tmp_path / "data",
            "--json",
            *(part for each in shape for part in ("-o", each)),
        )
        == 0
    )
    work = (
        "train",
        tmp_path / "data",
        "--out",
        tmp_path / "model",
        "--pool",
        "serial",
        "-p",
        "eps=0.0001",
    )
    begun = command(*work)
    parts = tmp_path / "model.run"
    wait_for(lambda: begun.poll() is not None or len(list(parts.rglob("*.arrow"))) >= 2)
    begun.send_signal(signal.SIGINT)
    _, err = begun.communicate(timeout=PATIENCE)
    assert begun.returncode == 130, err
    assert "stopping" in err
    assert "error STOPPED" in err
    assert str(parts) in err
    assert not (tmp_path / "model").exists()
    ended = command(*work)
    out, err = ended.communicate(timeout=PATIENCE)
    assert ended.returncode == 0, err
    assert " kept" in err
    whole = ("train", tmp_path / "data", "--out", tmp_path / "whole", "-p", "eps=0.0001", "--json")
    capsys.readouterr()
    assert run(*whole) == 0
    assert read(capsys)["sha256"][:16] in out


# over REST


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a service with the threaded pool for the tests of this file, and yield its URL."""
    home = tmp_path_factory.mktemp("served")
    process = command(
        "serve", "--port", 0, "--home", home, "--pool", "threads", "--log-level", "error", "--json"
    )
    try:
        wait_for(lambda: (home / "serve.json").is_file() or process.poll() is not None)
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


def test_workflow_over_rest(
    folder: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XCRAY_SERVER", server)
    capsys.readouterr()
    assert (
        run(
            "data",
            "upload",
            "jsonl",
            folder / "texts.jsonl",
            "--name",
            "things",
            "-o",
            "test_fraction=0.2",
            "--json",
        )
        == 0
    )
    dataset = read(capsys)
    assert dataset["status"] == "READY"
    assert run("data", "list") == 0
    assert dataset["id"] in capsys.readouterr().out
    submit = (
        "jobs",
        "submit",
        dataset["id"],
        "--model",
        "things",
        "-p",
        "lam=0.01",
        "--key",
        "once",
    )
    submit += ("--timeout", "90m", "--expires", "2d", "--max-attempts", "2")
    assert run(*submit, "--json") == 0
    job = read(capsys)
    assert (job["timeout_seconds"], job["max_attempts"], job["expires"] > job["created"]) == (
        5400,
        2,
        True,
    )
    assert job["spec"]["params"] == {"lam": 0.01} or job["spec"]["params"]["lam"] == 0.01
    assert run("jobs", "watch", job["id"]) == 0
    captured = capsys.readouterr()
    assert "SUCCEEDED" in captured.out
    assert run(*submit, "--json") == 0
    assert read(capsys)["id"] == job["id"]  # the same idempotency key returns the same job
    assert run("jobs", "get", job["id"], "--json") == 0
    assert read(capsys)["result"]["sha256"] == sha256_of(folder)
    for result, expected in (
        (True, ("--status", "SUCCEEDED")),
        (
            True,
            (
                "--status",
                "FAILED",
                "--status",
                "SUCCEEDED",
                "--kind",
                "train",
                "--model",
                "things",
                "--since",
                "1h",
            ),
        ),
        (True, ("--since", "2000-01-01T00:00:00Z", "--dataset", dataset["id"])),
        (False, ("--name", "others")),
        (False, ("--kind", "predict", "--since", "1h")),
    ):
        assert run("jobs", "list", *expected) == 0
        assert (job["id"] in capsys.readouterr().out) == result
    for wrong in (
        ("--since", "yesterday"),
        ("--since", "-1h"),
        ("--status", "DONE"),
        ("--since", "TODAY"),
    ):
        assert run("jobs", "list", *wrong) == 2
    capsys.readouterr()
    assert run("jobs", "logs", job["id"], "--json") == 0
    log = read(capsys)
    assert log["job"] == job["id"]
    assert run("jobs", "logs", job["id"], "--follow") == 0
    assert capsys.readouterr().out.splitlines() == log["lines"]
    assert run("models", "list") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("things\t1\tlatest=1")
    assert run("models", "alias", "things", "best", 1, "--json") == 0
    assert read(capsys)["aliases"]["best"] == 1
    assert run("models", "show", "things@best", "--json") == 0
    assert read(capsys)["version"] == 1
    assert run("models", "card", "things:1") == 0
    assert capsys.readouterr().out.startswith("# Model card")


def sha256_of(folder: Path) -> str:
    """Return the hash of the model that was trained without a server."""
    return str(json.loads((folder / "model" / "manifest.json").read_text())["sha256"])


def test_predictions_over_rest_equal_those_of_the_directory(
    folder: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = ("apple pear", "owl crow", "-k", 3, "--json")
    assert run("predict", folder / "model", *requests) == 0
    here = read(capsys)["predictions"]
    assert run("predict", "things", *requests, "--server", server) == 0
    assert read(capsys)["predictions"] == here
    assert run("explain", folder / "model", "apple pear", "--json") == 0
    here = read(capsys)
    assert run("explain", "things", "apple pear", "--server", server, "--json") == 0
    there = read(capsys)
    assert {name: there[name] for name in ("label", "score", "bias", "contributions")} == {
        name: here[name] for name in ("label", "score", "bias", "contributions")
    }


def test_server_errors_are_printed_like_local_errors(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("jobs", "get", "job_nothere", "--server", server, "--json") == 2
    assert json.loads(capsys.readouterr().err)["code"] == "NOT_FOUND"
    assert run("predict", "nothere", "text", "--server", server) == 2
    assert capsys.readouterr().err.startswith("error NOT_FOUND: ")
    assert run("jobs", "list", "--server", "http://127.0.0.1:9", "--json") == 1
    assert json.loads(capsys.readouterr().err)["code"] == "NO_SERVER"


def test_serve_rejects_invalid_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", "--host", "0.0.0.0", "--home", tmp_path / "home") == 2
    assert "PUBLIC_ADDRESS" in capsys.readouterr().err
    assert run("serve", "--pool", "nonsense", "--home", tmp_path / "home") == 2
    assert "--pool" in capsys.readouterr().err


def test_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--home", tmp_path, "--port", 0, "--json") == 0
    document = read(capsys)
    assert document["ok"]
    assert {check["name"]: check["status"] for check in document["checks"]}["training"] in (
        "ok",
        "warn",
    )
    locked = tmp_path / "file"
    locked.write_text("")
    assert run("doctor", "--home", locked / "home", "--port", 0) in (0, 1)
    assert len(capsys.readouterr().out.splitlines()) >= 10


def test_doctor_tells_compilation_from_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run after installation compiles kernels; that does not make the machine slow."""

    def on_end(self: CompilationNote, event: Any) -> None:
        self.n_kernels, self.seconds = 2, 40.0

    monkeypatch.setattr(CompilationNote, "on_end", on_end)
    monkeypatch.setattr(training, "train", partial(compile_and_train, training.train))
    check = check_training()
    assert check.status == "ok"
    assert ", 40.0 of them to compile, once, for 500 rows" in check.found


def compile_and_train(train: Any, *args: Any, **kwargs: Any) -> Any:
    """Compile a function, then train."""
    numba.njit(lambda x: x + 1)(1)
    return train(*args, **kwargs)


def test_find_descendants_and_kill_processes() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: len(processes.find_descendants([parent.pid])) == 2)
    family = processes.find_descendants([parent.pid])
    assert processes.wait_for_exit(family, 0.0) == family
    processes.kill_processes(family)
    parent.wait()
    assert processes.wait_for_exit(family, 60.0) == set()


@pytest.mark.drill
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    home = tmp_path / "home"
    demo = command("demo", "--pool", "threads", "--home", home)
    wait_for(lambda: (home / "serve.json").is_file() or demo.poll() is not None)
    # One child process builds the data set.
    wait_for(lambda: len(processes.find_descendants([demo.pid])) >= 2 or demo.poll() is not None)
    family = processes.find_descendants([demo.pid])
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130, err
    assert len(family) >= 2
    assert processes.wait_for_exit(family, 0.0) == set()
    assert "by force" not in out
    assert err.endswith("error INTERRUPTED: interrupted\n")
