"""Every command on a model that is a chain of stages: it works, or says why it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.chain_models import replay, text_chain
from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.model.model import Model

TEXTS = {"a": "apple pear", "b": "hammer saw", "c": "owl robin", "d": "rain snow"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data set, a linear model and a chain for it."""
    folder = tmp_path_factory.mktemp("chains")
    rows = [
        {"text": f"{text} even{i % 11} odd{i % 13}", "labels": [name]}
        for i in range(60)
        for name, text in TEXTS.items()
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"train": folder / "rows.jsonl"}
    build("jsonl", source, folder / "data", BuildOptions(test_fraction=0.5))
    text_chain(folder / "chain", Dataset.open(folder / "data"))
    return folder


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> int:
    """Run a command line in the folder."""
    monkeypatch.chdir(folder)
    return main(line.split())


def test_predictions_of_texts_and_files_are_those_of_the_stages(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model.open(folder / "chain")
    assert model.text is not None
    want = replay(model.text.transform(list(TEXTS.values())), model.stages)
    for text, scores in zip(TEXTS.values(), want, strict=True):
        monkeypatch.chdir(folder)
        assert main(["predict", "chain", text, "-k", "4", "--json"]) == 0
        [answer] = json.loads(capsys.readouterr().out)["predictions"]
        found = {each["label"]: each["score"] for each in answer["labels"]}
        assert [found[name] for name in model.labels] == pytest.approx(scores, rel=1e-12)
    assert run(folder, monkeypatch, "predict-batch chain rows.jsonl out --text-fields text") == 0
    table = pq.read_table(folder / "out")
    assert [each[0] for each in table["labels"].to_pylist()] == list(TEXTS) * 60


def test_it_is_evaluated_beside_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, monkeypatch, "evaluate chain chain data --json --samples 0") == 0
    report = json.loads(capsys.readouterr().out)
    assert [model["measures"]["P@1"] for model in report["models"]] == [1.0, 1.0]


def test_it_is_calibrated_and_then_predicts_probabilities(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, monkeypatch, "calibrate chain data -o calibrated --json") == 0
    capsys.readouterr()
    assert run(folder, monkeypatch, "predict calibrated apple --probabilities --json") == 0
    [answer] = json.loads(capsys.readouterr().out)["predictions"]
    assert answer["labels"][0]["label"] == "a"
    best = answer["labels"][0]["probability"]
    assert 0.5 < best <= 1.0
    for least, n_labels in ((best, 1), (1.0, 0)):
        how = f"predict calibrated apple --min-probability {least} --json"
        assert run(folder, monkeypatch, how) == 0
        [answer] = json.loads(capsys.readouterr().out)["predictions"]
        assert len(answer["labels"]) == n_labels
        assert all("probability" not in each for each in answer["labels"])
    assert run(folder, monkeypatch, how.removesuffix(" --json")) == 0
    assert "apple\n      no label: none is allowed" in capsys.readouterr().out


def test_it_is_copied_to_object_storage_and_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = (folder / "store").as_uri()
    assert run(folder, monkeypatch, f"models push chain {store}") == 0
    home = folder / "home"
    assert run(folder, monkeypatch, f"models pull {store} --home {home}") == 0
    [copy] = home.glob("**/manifest.json")
    assert Model.open(copy.parent).sha256 == Model.open(folder / "chain").sha256


READS: list[tuple[str, str]] = [
    ("models show chain", "stagewise"),
    ("models show chain", "params"),
    ("models card chain", "A chain of 2 stages over 4 labels"),
    ("models diff chain chain", "the same"),
    ("labels list chain", "weights"),
    ("report chain --out page", "solver stagewise records no gaps"),
]
REFUSALS = [
    ("explain chain apple", "stage 1 has features of its own"),
    ("labels show chain a", "chain of 2 stages"),
    ("labels rename chain a=z --out new", "chain of 2 stages"),
    ("labels remove chain a --out new", "chain of 2 stages"),
    ("labels merge chain a b --into ab --dataset data --out new", "chain of 2 stages"),
    ("labels add chain --dataset data --out new", "chain of 2 stages"),
    ("retrain chain --dataset data --labels a --out new", "chain of 2 stages"),
]


@pytest.mark.parametrize(("line", "expected"), READS)
def test_commands_that_read_reports(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    expected: str,
) -> None:
    assert run(folder, monkeypatch, line) == 0
    assert expected in "".join(capsys.readouterr())


@pytest.mark.parametrize(("line", "reason"), REFUSALS)
def test_commands_that_need_a_linear_model_say_so(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    reason: str,
) -> None:
    assert run(folder, monkeypatch, line) == 2
    assert reason in capsys.readouterr().err
    assert not (folder / "new").exists()
