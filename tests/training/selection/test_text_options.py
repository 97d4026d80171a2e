"""`--auto` on data sets of texts: options chosen on held-out training rows, and their report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.data.dataset import Dataset
from xcray.data.texts import read_texts
from xcray.errors import Stopped
from xcray.model.model import Model
from xcray.training import TrainSpec, train
from xcray.training.evaluation import EvaluationOptions, evaluate_model
from xcray.training.finished import find_finished
from xcray.training.selection.text_options import TextSelector, frequent_language
from xcray.workers.pool import StopFlag

TOPICS = 4


def rows(n: int, seed: int) -> str:
    """Return rows whose title names their topic, and whose abstract has the words of all topics."""
    rng, lines = np.random.default_rng(seed), []
    for _ in range(n):
        topic = int(rng.integers(TOPICS))
        noise = [f"word{each}" for each in rng.integers(0, 3 * TOPICS, 8)]
        title = f"word{3 * topic + int(rng.integers(3))}"
        row = {"title": title, "abstract": " ".join(noise), "labels": [f"topic{topic}"]}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Build a data set of titles and abstracts."""
    folder = tmp_path_factory.mktemp("documents")
    files = {"train": folder / "train.jsonl", "test": folder / "test.jsonl"}
    files["train"].write_text(rows(300, 0))
    files["test"].write_text(rows(80, 1))
    options = BuildOptions.from_dict({"text_fields": ["title", "abstract"]})
    return build("jsonl", files, folder / "data", options)


def spec(data: Dataset, **changes: Any) -> TrainSpec:
    """Return a serial training that chooses everything."""
    return TrainSpec(**{"dataset": str(data.path), "pool": "serial", "auto": "P@1", **changes})


@pytest.fixture(scope="module")
def model(data: Dataset) -> Model:
    """Train with chosen options."""
    run = data.path.parent / "run"
    return Model.open(train(spec(data), run_dir=run, out=data.path.parent / "model").model_path)


def test_texts_without_blanks_get_runs_of_characters(tmp_path: Path) -> None:
    """Chinese sentences, each of which is one word otherwise."""
    topics = ("机器学习", "数据库系统", "量子力学", "有机化学")
    lines = [
        json.dumps(
            {"text": f"{'关于简明高级'[i % 6]}{topics[i % TOPICS]}{i}", "labels": [str(i % 4)]}
        )
        for i in range(200)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    options = BuildOptions.from_dict({"test_fraction": 0.3})
    built = build("jsonl", {"train": tmp_path / "rows.jsonl"}, tmp_path / "data", options)
    late = TextSelector(
        built, "ppdsparse", {}, "P@1", 1, tmp_path / "tries.json", is_late=lambda: True
    )
    assert "char_ngrams=[2, 3]: the time is up" in late.run()[1]["not_tried"]


def test_the_field_with_the_topic_gets_a_weight(data: Dataset, model: Model) -> None:
    """The data set stays, and can be evaluated with the model, whose features are others."""
    text = model.manifest["report"]["auto"]["text"]
    kept = {each["name"] for each in text["tried"] if each["kept"]}
    assert "title:2" in kept
    assert "abstract:2" not in kept
    assert text["over_start"]["gain"] > 0.0
    assert (text["rows"] + text["held_out"], text["dataset"]) == (300, data.content_hash)
    assert model.text is not None
    assert data.text is not None
    assert model.text.params.fields[0].weight >= 2.0
    assert data.text.params.fields == ()
    entry, _ = evaluate_model(model.path, data, "test", EvaluationOptions(ks=(1,), n_samples=0))
    assert entry["measures"]["P@1"] == model.measures["P@1"]
    rebuilt = Dataset.open(data.path.parent / "run" / "data")
    for part in ("train", "test"):
        assert [*read_texts(rebuilt, part)] == [*read_texts(data, part)]
    assert rebuilt.content_hash == model.manifest["dataset_hash"]
    assert rebuilt.test is not None
    assert data.test is not None
    assert (rebuilt.test.Y.indices == data.test.Y.indices).all()
    finished = find_finished(spec(data), model.path)
    assert finished is not None
    assert finished.sha256 == model.sha256


def test_a_stopped_choice_continues_on_threads_to_the_same_model(
    data: Dataset, model: Model, tmp_path: Path
) -> None:
    stop, tries = StopFlag(), list[str]()

    def stop_after_three(step: Any) -> None:
        tries.append(step.note)
        if len(tries) == 4:
            stop.set()

    changed = spec(data, pool="threads", workers=2)
    where = {"run_dir": tmp_path / "run", "out": tmp_path / "model"}
    with pytest.raises(Stopped):
        train(changed, progress=stop_after_three, stop=stop, **where)
    stored = json.loads((tmp_path / "run" / "text-options.json").read_text())
    assert len(stored) == 3  # the fourth was begun
    assert train(changed, **where).sha256 == model.sha256


def test_what_is_not_tried_says_why(data: Dataset, tmp_path: Path) -> None:
    """Options of the data set and given parameters stay; test rows are not read."""
    options = {"text_fields": ["title", "abstract"], "text": {"ngram_max": 2}}
    source = {"train": data.path.parent / "train.jsonl"}
    pairs = build("jsonl", source, tmp_path / "data", BuildOptions.from_dict(options))
    late = TextSelector(
        pairs, "ppdsparse", {"lam": 0.1}, "P@1", 1, tmp_path / "tried.json", is_late=lambda: True
    )
    assert pairs.text is not None
    params, report = late.run()
    assert params == pairs.text.params
    assert [each["name"] for each in report["tried"]] == ["as built"]
    assert report["chosen"] == {}
    assert report["not_tried"] == [
        "title:2: the time is up",
        "title:4: title:2 was not better",
        "abstract:2: the time is up",
        "abstract:4: abstract:2 was not better",
        "sublinear_tf=true: the time is up",
        "char_ngrams=[4,6]: the time is up",
        f"language={frequent_language(late.texts)}: the time is up",
    ]


def test_the_language_is_that_of_nearly_all_texts() -> None:
    """With several, it is detected text by text, also if the file begins with those of one."""
    english, german = "how to read the end of a book", "die Geschichte der Stadt und von ihr"
    assert frequent_language([english] * 19 + [german]) == "en"
    assert frequent_language([english] * 1200 + [german] * 1300) == "auto"


def test_the_command_prints_the_tries(
    data: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest time of the selection includes them."""
    command = ["train", str(data.path), "--auto", "P@1", "--pool", "serial"]
    assert main([*command, "-o", str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "title:2" in printed
    assert "kept" in printed
    assert main([*command, "-o", str(tmp_path / "other"), "--estimate", "--json"]) == 0
    estimated = json.loads(capsys.readouterr().out)
    assert estimated["selection_core_seconds"] > 2.0 * estimated["core_seconds"]
