"""Commands that explore: labels, solvers, completion, similar names in errors."""

from __future__ import annotations

import errno
import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from tests.support.live_service import text_model
from xcray.cli.main import commands_for, main
from xcray.cli.setup.demo import upload_standard_library
from xcray.cli.terminal.compilation import NOTE, compilation_note
from xcray.cli.terminal.completion import complete_datasets, complete_models, complete_solvers
from xcray.data.dataset import Dataset
from xcray.index.search import SearchIndex
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.service.routes.dataset_requests import check_options
from xcray.solvers import SOLVERS, parameter_table


def run(*words: Any) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the directory of a text model."""
    text_model(tmp_path / "model")
    return tmp_path / "model"


def test_labels_are_listed_and_shown(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("labels", "list", model, "--limit", "2", "--json") == 0
    [first, second] = json.loads(capsys.readouterr().out)["labels"]
    assert (first["number"], second["number"]) == (0, 1)
    assert run("labels", "list", model, "--contains", first["label"].upper()) == 0
    assert first["label"] in capsys.readouterr().out
    assert run("labels", "show", model, first["label"], "--features", "1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["label"], len(document["features"])) == (first["label"], 1)
    assert run("labels", "show", model, first["label"]) == 0
    assert "similar label" in capsys.readouterr().out
    assert run("labels", "show", model, first["label"], "--similar", "0") == 0
    assert "none\t-" in capsys.readouterr().out


def test_solvers_are_listed_with_their_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("solvers", "--json") == 0
    document = json.loads(capsys.readouterr().out)["solvers"]
    assert [each["name"] for each in document] == list(SOLVERS)
    assert document[0]["parameters"] == json.loads(json.dumps(parameter_table("ppdsparse")))
    assert all(each["help"] and each["family"] for each in document)
    baselines = {each["name"] for each in document if each["baseline"]}
    assert baselines == {
        *("ppdsparse-paper", "memoir-paper", "memoir-paper-frozen", "memoir-scripts", "lc"),
        *("block-minimisation", "selective-block-minimisation", "pegasos"),
    }
    assert run("solvers") == 0
    solvers, _, others = capsys.readouterr().out.partition("baseline\t")
    assert all((f"\n{name}\t" in others) and (f"\n{name}\t" not in solvers) for name in baselines)
    assert run("solvers", "dsmlr") == 0
    assert "lbfgs_switch_tol" in capsys.readouterr().out
    assert run("solvers", "svm") == 2
    assert "UNKNOWN_SOLVER" in capsys.readouterr().err


def test_public_sets_are_listed_and_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "fetch", "--json") == 0
    sets = {each["name"]: each for each in json.loads(capsys.readouterr().out)["sets"]}
    assert {"bibtex", "eurlex", "rcv1", "covtype"} <= sets.keys()
    assert all(each["licence"] and each["files"] for each in sets.values())
    assert run("data", "fetch") == 0
    assert "\ncovtype\t581,012\town split\t54\t7\t" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "Eurlex.zip", "w") as archive:
        archive.writestr("eurlex_train.txt", "1 1 1\n0 0:1\n")
        archive.writestr("eurlex_test.txt", "1 1 1\n0 0:1\n")
    words = ("data", "fetch", "eurlex", "--out", tmp_path / "new", "--from", tmp_path)
    assert run(*words) == 0
    shown = capsys.readouterr().out
    assert "Eurlex.zip: " in shown
    assert "licence" in shown
    assert run(*words) == 1
    assert "choose another with --out" in capsys.readouterr().err


def test_similar_names_are_suggested(
    model: Path, tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        (["evaluate", model.with_name("modle"), tiny.path], "did you mean 'model'"),
        (["train", tiny.path.with_name("dataa"), "-o", tmp_path / "new"], "did you mean 'data'"),
        (["train", tiny.path, "-o", tmp_path / "new", "-p", "lamm=1"], "did you mean 'lam'"),
        (["evalaute"], "'evaluate'"),
    ]
    for words, part in cases:
        assert run(*words) == 2, words
        assert part in capsys.readouterr().err.lower()


def test_completion_offers_models_data_sets_and_solvers(
    model: Path, tiny: Dataset, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_model(model.with_name("other"))
    Registry(own_home / "models").publish("registered", model.with_name("other"))
    (model.parent / "folder").mkdir()
    monkeypatch.chdir(model.parent)
    assert complete_models("mo") == ["model"]
    assert complete_models("f") == ["folder/"]
    assert complete_models("reg") == ["registered"]
    assert complete_models(f"{model.parent}/mo") == [str(model)]
    assert str(tiny.path) in complete_datasets(f"{tiny.path.parent}/")
    assert str(model) not in complete_datasets(f"{model.parent}/mo")
    assert complete_solvers("l") == ["l2svm", "lbfgs", "lc", "least-squares"]
    assert complete_models("no/such/place/x") == []


def test_wrong_input_is_explained(
    model: Path, tiny: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = tmp_path / "letters.jsonl"
    letters.write_text('{"text": "a b c", "labels": ["x"]}\n' * 3)
    missing = model.with_name("modell")
    cases = [
        (["predict", missing, "x"], "there is no model directory", "did you mean 'model'"),
        (["explain", missing, "x"], "there is no model directory", "xcray serve"),
        (["labels", "rename", model, "bread", "--out", tmp_path / "n"], "OLD=NEW", "cvs=csv"),
        (["evaluate", tiny.path, tiny.path], "a data set, not a model", "xcray train"),
        (["train", model, "--out", tmp_path / "n"], "is a model, not a data set", "trained on"),
        (["data", "build", "jsonl", letters, tmp_path / "d"], "has a term", "two letters"),
        (["labels", "show", model, "nothing at all"], "no label", "its labels have names like"),
    ]
    for words, *parts in cases:
        assert run(*words) == 2, words
        err = capsys.readouterr().err
        assert all(part in err for part in parts), err


def test_a_full_disk_names_the_fix(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("xcray.cli.models.label_details.open_model", fail)
    assert run("labels", "list", model) == 1
    assert "hint: free space on the disk" in capsys.readouterr().err


def test_every_command_has_json() -> None:
    def without_json(command: Any, name: str) -> list[str]:
        if hasattr(command, "commands"):
            parts = command.commands.items()
            return [each for part, inner in parts for each in without_json(inner, f"{name} {part}")]
        return [] if any("--json" in each.opts for each in command.params) else [name]

    assert without_json(commands_for([]), "xcray") == []


def test_a_few_rows_are_predicted_without_search_kernels(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", model, "read a csv file", "--certificate", "--json") == 0
    expected = json.loads(capsys.readouterr().out)["predictions"][0]["labels"]
    of_kernels = Predictor(Model.open(model)).explain("read a csv file", expected[0]["label"])

    def unexpected(*arguments: Any) -> None:
        raise AssertionError("a search kernel was called")

    lists = ("search_narrow_rows", "search_short_rows", "search_wide_rows")
    for kernel in ("search_dense", *lists):
        monkeypatch.setattr(f"xcray.index.search.{kernel}", unexpected)
    monkeypatch.setattr(SearchIndex, "is_compiled", False)
    monkeypatch.setattr(SearchIndex, "_numpy_seconds", 0.0)
    assert run("predict", model, "read a csv file", "--json") == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["labels"] == expected
    assert run("explain", model, "read a csv file", "--json") == 0
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["label"] == expected[0]["label"]
    assert explanation["score"] == of_kernels.score
    assert explanation["gap_to_kth"] == of_kernels.gap_to_kth


def test_compilation_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    with compilation_note():
        assert capsys.readouterr().err == ""
        for add in (1, 2):
            inner = numba.njit(lambda x, add=add: x + add)
            numba.njit(lambda x, inner=inner: inner(x))(1)
    first, total = capsys.readouterr().err.splitlines()
    assert first == NOTE
    assert re.fullmatch(r"compiled 2 kernels in \d+\.\d s", total)
    with compilation_note():
        pass
    assert capsys.readouterr().err == ""


def test_every_command_that_searches_announces_compilation(
    model: Path, tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose first run after installation was silent for many seconds."""
    announced = []

    @contextmanager
    def note() -> Iterator[None]:
        announced.append("by a note")
        yield

    monkeypatch.setattr("xcray.cli.terminal.compilation.compilation_note", note)
    texts = tmp_path / "texts.txt"
    texts.write_text("read a csv file\n")
    commands = [
        ("predict", model, "read"),
        ("explain", model, "read"),
        ("train", tiny.path, "-o", tmp_path / "tiny", "--pool", "serial"),
        ("evaluate", tmp_path / "tiny", tiny.path),
        ("predict-batch", model, texts, tmp_path / "out", "--format", "text"),
        ("data", "build", "svmlight", tmp_path / "rows.svm", tmp_path / "data"),
        ("data", "show", tmp_path / "data"),
        ("data", "set-weights", tmp_path / "data", tmp_path / "weights", "-o", tmp_path / "other"),
    ]
    (tmp_path / "rows.svm").write_text("0 1:1\n1 2:1\n")
    (tmp_path / "weights").write_text("1\n2\n")
    for words in commands:
        assert run(*words) == 0
    assert len(announced) == len(commands)


def test_the_small_demo_sends_options_that_a_service_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr("xcray.data.demo.documents", lambda roots: [])
    datasets = SimpleNamespace(upload=lambda path, **more: sent.append(json.dumps(more["options"])))
    client: Any = SimpleNamespace(datasets=datasets)
    upload_standard_library(client, tmp_path / "rows")
    assert check_options("jsonl", json.loads(sent[0]))["text"]["min_df"] == 2
