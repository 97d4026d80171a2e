"""`xcray evaluate` of files and servers, and `xcray compare`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_service import LABELS, TEXTS, publish, serving, settings_for, text_model
from xcray.cli.main import main
from xcray.data.dataset import Dataset
from xcray.model.model import Model
from xcray.service.app import create_app


def run(line: str) -> int:
    """Run a command and return its exit status."""
    return main(line.split())


def answer(capsys: pytest.CaptureFixture[str], line: str, status: int = 0) -> Any:
    """Return the JSON document of a command."""
    capsys.readouterr()
    assert main([*line.split(), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_a_file_is_evaluated_as_the_data_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("sockets", "tables", "dates")
    rows = "".join(f"about {words[i % 3]};text;l{i % 3}\n" for i in range(60))
    Path("rows.csv").write_text("title;body;tags\n" + rows)
    fields = "--text-fields title,body --label-field tags --delimiter"
    assert run(f"data build csv rows.csv data {fields} ;") == 0
    assert run("train data --pool serial") == 0
    [whole] = answer(capsys, "evaluate model data")["models"]
    [read] = answer(capsys, "evaluate model rows.csv")["models"]  # with its fields and delimiter
    assert {**read, "ms_per_row": 0} == {**whole, "ms_per_row": 0}
    assert (read["solver"], read["params"]) == ("ppdsparse", {})
    report = Model.open(Path("model")).manifest["report"]
    assert read["core_seconds"] == report["core_seconds"] <= read["seconds"]
    groups = answer(capsys, "evaluate model rows.csv --label-field tags --by tags")["models"][0]
    assert [(each["value"], each["rows"]) for each in groups["by_value"]] == [
        ("l0", 20),
        ("l1", 20),
        ("l2", 20),
    ]
    assert groups["by_value"][0]["measures"]["recall@1"] == 1.0
    Path("more.csv").write_text("title;body;tags\n" + rows + "about nothing;text;\n" * 20)
    more = answer(capsys, "evaluate model more.csv --label-field tags")
    assert (more["rows"], more["rows_without_labels"]) == (80, 20)
    assert more["models"][0]["measures"] == whole["measures"]
    assert run("evaluate model more.csv --label-field tags") == 0
    assert "60 rows of more.csv (20 without labels are left out)" in capsys.readouterr().out
    assert run("evaluate model rows.csv --label-field no") == 2
    assert "--text-fields and --label-field" in capsys.readouterr().err
    Path("rows.fasttext").write_text("__label__l0 about sockets\n")
    assert run("evaluate model rows.fasttext --format fasttext --by tags") == 2
    assert "--by is for texts: rows of fasttext have no fields" in capsys.readouterr().err
    assert run("evaluate model data --label-field tags") == 2
    assert "data is not a file" in capsys.readouterr().err
    assert run("evaluate model rows.csv --label-field tags") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("60 rows of rows.csv; ")
    assert "solver\tppdsparse" in shown
    shutil.copytree("model", "other/model")
    assert run("evaluate model other/model data") == 0
    assert "measure\tmodel\tother/model" in capsys.readouterr().out


def test_models_of_other_fields_are_compared_on_one_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reads its own fields of the texts that the data set keeps."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"word{i % 3},about {i},en,l{i % 3};m{i % 2}\n" for i in range(60))
    Path("rows.csv").write_text("title,body,lang,tags\n" + rows)
    labels = "--label-field tags --label-separator ;"
    more = "--text-fields body,title:2 --option text.language=lang"
    assert run(f"data build csv rows.csv titles --text-fields title {labels}") == 0
    assert run(f"data build csv rows.csv documents {more} {labels}") == 0
    assert run("data build csv rows.csv again --like m1") == 2
    assert run("train titles --pool serial --out m1") == 0
    assert run("train documents --pool serial --out m2") == 0
    own = [
        answer(capsys, f"evaluate {pair}")["models"][0] for pair in ("m1 titles", "m2 documents")
    ]
    both = answer(capsys, "evaluate m1 m2 documents")["models"]
    assert [each["measures"] for each in both] == [each["measures"] for each in own]
    assert run("evaluate m2 titles") == 2
    assert "made by another text pipeline" in capsys.readouterr().err
    assert run("data build csv rows.csv again --like m1") == 0
    assert Dataset.open(Path("again")).n_labels == 5


def test_a_server_is_evaluated_as_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = zip(TEXTS, [*LABELS[1:], "unknown"], strict=False)
    rows = (json.dumps({"text": text, "labels": [label]}) for text, label in pairs)
    Path("rows.jsonl").write_text("".join(f"{row}\n" for row in rows))
    text_model(tmp_path / "model")
    application = create_app(settings_for(tmp_path / "home"))
    publish(application.state.app_state.registry, "docs", tmp_path / "staged")
    [local] = answer(capsys, "evaluate model rows.jsonl -k 1 -k 3")["models"]
    assert run("data build jsonl rows.jsonl data --like model") == 0
    with serving(application) as url:
        for rows_of in ("rows.jsonl", "data"):
            line = f"evaluate docs {rows_of} -k 1 -k 3 --server {url}"
            [remote] = answer(capsys, line)["models"]
            assert remote["model"] == "docs:1"
            for name in ("measures", "intervals", "labels", "weights"):
                assert remote[name] == local[name], name


def test_a_model_without_features_answers_rows_without_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.svm").write_text("0 \n1 \n1 \n")
    Path("rows.svm").write_text("1 1:1\n")
    assert run("data build svmlight train.svm data") == 0
    assert run("train data --pool serial") == 0
    found = answer(capsys, "predict model --file train.svm -k 1")["predictions"]
    assert [each["labels"][0]["label"] for each in found] == ["1"] * 3
    assert run("predict model --file rows.svm") == 2
    assert "rows.svm:1:3: index 1 is above the last feature, 0" in capsys.readouterr().err


def test_rows_for_a_server_have_the_first_index_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.svm").write_text("0 0:1 4:1\n1 1:1\n2 2:1 6:1\n" * 30)
    Path("rows.svm").write_text("1 1:1\n2 2:1 6:1\n")
    assert run("data build svmlight train.svm data --zero-based") == 0
    assert run("train data --pool serial") == 0
    application = create_app(settings_for(tmp_path / "home"))
    with serving(application) as url:
        application.state.app_state.registry.publish("rows", Path("model"))
        predict, evaluate = "predict rows --file rows.svm", "evaluate rows rows.svm -k 1"
        found = answer(capsys, f"{predict} --server {url}")["predictions"]
        assert [each["labels"][0]["label"] for each in found] == ["1", "2"]
        [entry] = answer(capsys, f"{evaluate} --server {url}")["models"]
        assert entry["measures"]["P@1"] == 1.0
        Path("train.svm").write_text("0 1:1 4:1\n1 2:1\n2 3:1 6:1\n" * 30)
        assert run("data build svmlight train.svm other") == 0
        assert run("train other --pool serial --out one") == 0
        application.state.app_state.registry.publish("one", Path("one"))
        assert run(f"predict one --file rows.svm --zero-based --server {url}") == 2
        assert "indices that start at 1" in capsys.readouterr().err


def test_solvers_are_compared_and_a_repeated_command_trains_nothing(
    tiny: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"compare {tiny.path} --solvers ppdsparse dismec -k 1 --pool serial"
    line += " -p ppdsparse.lam=0.02 -p C=0.5"
    document = answer(capsys, line)
    assert [each["solver"] for each in document["models"]] == ["ppdsparse", "dismec"]
    assert document["models"][0]["params"] == {"lam": 0.02, "C": 0.5}
    assert document["models"][1]["differences"]["P@1"]["low"] <= 0
    assert json.loads(Path("compare/compare.json").read_text()) == document
    assert Path("compare/compare.svg").read_text().startswith("<svg")
    stamps = [path.stat().st_mtime_ns for path in Path("compare").glob("*/manifest.json")]
    again = answer(capsys, line)
    assert [each["sha256"] for each in again["models"]] == [
        each["sha256"] for each in document["models"]
    ]
    assert stamps == [path.stat().st_mtime_ns for path in Path("compare").glob("*/manifest.json")]
    failed = answer(capsys, f"{line} --out other --memory-limit 1KB", status=1)
    assert set(failed["failures"]) == {"ppdsparse", "dismec"}
    assert run(f"compare {tiny.path} lbfgs dismec -p C=1") == 2  # before any training
    assert not Path("compare/lbfgs").exists()
    assert run(f"compare {tiny.path}") == 2
    assert run(f"compare {tiny.path} dismec -p ppdsparse.C=1") == 2
    assert "ppdsparse is not among the solvers" in capsys.readouterr().err
