"""Warnings about data sets that are readable and probably not what was meant."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.data_warnings import data_warnings, label_warning, separator_warning
from xcray.data.dataset import Dataset
from xcray.jobs.runner.publish import Outcome, Publisher
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.service.datasets.statistics import statistics
from xcray.training import TrainSpec
from xcray.training import train as train_model
from xcray.training.report.render import summarize_model

COLOURS = ["red", "green", "blue", "black", "white", "grey"]


def build_rows(place: Path, train: list[tuple[str, str]], test: list[tuple[str, str]]) -> Dataset:
    """Build a data set of (text, label) rows."""
    for name, rows in (("train", train), ("test", test)):
        lines = (
            json.dumps({"text": text, "labels": [label] if label else []}) + "\n"
            for text, label in rows
        )
        (place / f"{name}.jsonl").write_text("".join(lines))
    sources = {name: place / f"{name}.jsonl" for name in ("train", "test")}
    options = BuildOptions.from_dict({"text": {"min_df": 1}})
    return build("jsonl", sources, place / "data", options)


def codes(warnings: list[dict[str, Any]]) -> list[str]:
    return [each["code"] for each in warnings]


def test_names_that_are_lists_of_labels() -> None:
    pairs = [f"{a}, {b}" for a in COLOURS for b in COLOURS if a != b]
    result = separator_warning(pairs)
    assert result is not None
    assert result.code == "LABEL_SEPARATOR"
    assert "30 of 30 label names contain ',' and have 6 different parts" in result.message
    assert separator_warning([pair.replace(", ", "|") for pair in pairs]) is not None
    single = [f"a{i}; b{i}" for i in range(30)]  # a large vocabulary: no part occurs twice
    assert separator_warning(single) is not None
    assert separator_warning([pair.replace(";", ",") for pair in single]) is None


@pytest.mark.parametrize(
    ("names", "separator"),
    [
        ([f"http://e.org/{a} http://e.org/{b}" for a in range(30) for b in range(30)], "' '"),
        ([f"e.org/{a} e.org/{b}" for a in range(30) for b in range(30)], "' '"),
        ([f"red {a}, blue {b}" for a in COLOURS for b in COLOURS], "','"),
        ([f"{a}/1;{b}/1" for a in COLOURS for b in COLOURS], "';'"),
    ],
)
def test_the_separator_that_is_advised_gives_the_labels(names: list[str], separator: str) -> None:
    result = separator_warning(names)
    assert result is not None
    assert f"--label-separator {separator} " in result.message


def test_a_separator_that_would_give_empty_labels_is_not_advised() -> None:
    names = [f"http://e.org/{a}" for a in range(9)] + [f"//{a}/" for a in range(9)]
    assert separator_warning(names) is None


def test_lists_in_another_notation_have_a_warning() -> None:
    names = [f"[{a} {b}]" for a in COLOURS for b in COLOURS]
    result = label_warning(names)
    assert result is not None
    assert result.code == "LABEL_BRACKETS"
    assert "36 of 36 label names are in brackets, such as '[red red]'" in result.message


@pytest.mark.parametrize(
    "names",
    [
        [],
        COLOURS,
        ["Paris, France", "Rome, Italy", "Bern, Switzerland", "Oslo, Norway"],
        ["machine learning", "deep learning", "machine vision", "deep sea"],
    ],
)
def test_names_that_are_single_labels(names: list[str]) -> None:
    assert separator_warning(names) is None


def test_data_without_faults_has_no_warning(tiny: Dataset) -> None:
    assert data_warnings(tiny) == []


def test_each_fault_has_its_warning(tmp_path: Path) -> None:
    train = [(f"apple pear plum {i}", COLOURS[i % 2]) for i in range(20)]
    test = [("apple pear plum 1", "red")] * 5 + [("x y", "unheard")] * 6 + [("zzz", "")] * 3
    data = build_rows(tmp_path, train, test)
    expected = ["UNSEEN_LABELS", "EMPTY_ROWS", "UNLABELLED_ROWS", "COPIED_ROWS"]
    assert codes(data_warnings(data)) == expected
    assert codes(data_warnings(data, copies=False)) == expected[:-1]
    unseen, empty, unlabelled, copied = (each["message"] for each in data_warnings(data))
    assert unseen.startswith("6 of 11 labels of the test rows")
    assert empty.startswith("9 of 14 test rows have no feature")
    assert unlabelled.startswith("3 of 14 test rows have no label:")
    assert copied.startswith("5 of 14 test rows equal a training row")
    assert statistics(data)["warnings"] == data_warnings(data)


def test_texts_of_another_kind_have_a_warning(tmp_path: Path) -> None:
    train = [(f"apple pear plum grape {i}", COLOURS[i % 2]) for i in range(20)]
    data = build_rows(tmp_path, train, [("apple und birne oder traube", "red")] * 5)
    [found] = data_warnings(data)
    assert found["code"] == "UNKNOWN_WORDS"
    assert found["message"].startswith("test texts have 1.0 features each, training texts 4.")
    (tmp_path / "few").mkdir()
    few = build_rows(tmp_path / "few", train, [("apple und birne oder traube", "red")] * 4)
    assert data_warnings(few) == []


def test_texts_that_are_read_badly_have_warnings(tmp_path: Path) -> None:
    """Scripts without blanks, HTML, and a language that is neither known nor a field."""
    for text, reading, code in (
        ("关于机器学习入门", {}, "NO_BLANKS"),
        ("关于机器学习入门", {"char_ngrams": [2, 3]}, None),
        ("<p>a cat &amp; a dog</p>", {}, "MARKUP"),
        ("a cat & a dog < 3", {}, None),
        ("Ann <ann@example.org> calls List<String> f(int x=&y;", {}, None),
        ("a cat", {"language": "klingon"}, "NO_LANGUAGE"),
        ("a cat", {"language": "lang"}, None),
    ):
        rows = ({"text": text, "lang": "en", "labels": [str(i % 2)]} for i in range(20))
        source = tmp_path / "rows.jsonl"
        source.write_text("\n".join(map(json.dumps, rows)))
        options = BuildOptions.from_dict({"text_fields": ["text"], "text": reading})
        data = build(
            "jsonl", {"train": source}, tmp_path / f"{len([*tmp_path.iterdir()])}", options
        )
        assert codes(data_warnings(data)) == ([code] if code else []), (text, reading)


def test_warnings_are_kept_in_the_report_and_the_job(tmp_path: Path) -> None:
    train = [(f"apple pear plum grape {i}", COLOURS[i % 2]) for i in range(20)]
    data = build_rows(tmp_path, train, [("apple und birne oder traube", "red")] * 5)
    spec = TrainSpec(str(data.path), pool="serial")
    trained = train_model(spec, run_dir=tmp_path / "run", out=tmp_path / "model")
    [found] = trained.report["data"]["warnings"]
    assert found["code"] == "UNKNOWN_WORDS"
    assert summarize_model(Model.open(trained.model_path))["training"] == trained.report
    publisher = Publisher(tmp_path / "publish", Registry(tmp_path / "models"), "job_a", "m")
    outcome = Outcome(trained.sha256, trained.measures, trained.report)
    result = publisher.publish(trained.model_path, outcome, 1, lambda: None)
    assert result["data_warnings"] == [found]


def test_commands_print_every_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A data set with all faults of texts; `train` leaves out the pass that finds copied rows."""
    pairs = [f"{a}, {b}" for a in COLOURS for b in COLOURS if a != b]
    train = [(f"apple pear plum grape {i}", pair) for i, pair in enumerate(pairs)]
    other = [("birne oder apple", "unheard")] * 60 + [("zzz", "")] * 10
    data = build_rows(tmp_path, train, [*other, *train[:10]])
    expected = ["LABEL_SEPARATOR", "UNSEEN_LABELS", "EMPTY_ROWS", "UNLABELLED_ROWS"]
    expected += ["UNKNOWN_WORDS", "COPIED_ROWS"]
    commands = {
        ("data", "show", str(data.path)): expected,
        ("train", str(data.path), "-o", str(tmp_path / "model"), "--pool", "serial"): expected[:-1],
    }
    for words, codes_of_command in commands.items():
        assert main([*words]) == 0
        err = capsys.readouterr().err
        found = re.findall(r"warning ([A-Z_]+):", err)
        assert [code for code in found if code in expected] == codes_of_command


def test_commands_print_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.csv"
    pairs = [(a, b) for a in COLOURS for b in COLOURS if a != b]
    rows = "".join(f'word{i % 3} text,"{a};{b}"\n' for i, (a, b) in enumerate(pairs * 2))
    file.write_text(f"text,labels\n{rows}")
    words = ["--text-fields", "text", "--label-field", "labels", "--label-separator", ","]
    assert main(["data", "build", "csv", str(file), str(tmp_path / "data"), *words]) == 0
    err = capsys.readouterr().err
    assert "warning LABEL_SEPARATOR: 30 of 30" in err
    assert "--label-separator ';'" in err
    assert main(["data", "show", str(tmp_path / "data"), "--json"]) == 0
    assert codes(json.loads(capsys.readouterr().out)["warnings"]) == ["LABEL_SEPARATOR"]
