"""`xcray labels` and `xcray retrain`, and the parsing of options with several values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xcray.cli.main import main
from xcray.data.build import BuildOptions, build
from xcray.model.model import Model


def run(*words: Any) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data set of labels a to d and a model trained on it."""
    folder = tmp_path_factory.mktemp("labels")
    texts = {"a": "apple pear", "b": "hammer saw", "c": "owl robin", "d": "rain snow"}
    rows = [
        {"text": f"{text} {i}", "labels": [name]} for i in range(6) for name, text in texts.items()
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(
        "jsonl", {"train": folder / "rows.jsonl"}, folder / "data", BuildOptions(test_fraction=0.2)
    )
    assert run("train", folder / "data", "--out", folder / "model", "--json") == 0
    return folder


def test_every_change_from_the_command_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    data = f"--dataset {folder}/data"

    def labels_after(line: str, out: str) -> list[str]:
        assert run(*f"{line} --out {out}".split()) == 0
        return list(Model.open(tmp_path / out).label_names.to_pylist())

    assert labels_after(f"labels remove {folder}/model b c", "less") == ["a", "d"]
    assert labels_after(f"labels add less {data} --labels c --labels b", "more") == [
        "a",
        "d",
        "c",
        "b",
    ]
    assert "add: 2 labels trained, 2 kept, 4 in total" in capsys.readouterr().out
    assert labels_after(f"labels merge more a b --into ab {data}", "one") == ["ab", "d", "c"]
    assert labels_after("labels rename one c=sea d=dee", "named") == ["ab", "dee", "sea"]
    labels_after(f"retrain more --labels a --labels d {data} --pool serial", "again")
    assert Model.open(tmp_path / "again").sha256 == Model.open(tmp_path / "more").sha256
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["again", "less", "more", "named", "one"]


def test_an_update_from_the_command_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("new.jsonl").write_text(json.dumps({"text": "snow owl", "labels": ["c", "e"]}) + "\n")
    Path("gone.txt").write_text("0\n")
    change = f"data delta {folder}/data changed --add new.jsonl --remove gone.txt"
    assert run(*change.split()) == 0
    assert run(*f"train {folder}/data --out kept --keep-duals".split()) == 0
    capsys.readouterr()
    assert run(*["update", "kept", "--dataset", "changed", "--out", "after"]) == 0
    model = Model.open(tmp_path / "after")
    counts = model.manifest["report"]["update"]
    solved = counts["solved"] + counts["new"]
    assert counts["new"] == 1
    message = f"update: {solved} labels trained, {counts['untouched']} kept, 5 in total"
    assert message in capsys.readouterr().out
    assert model.label_names.to_pylist() == ["a", "b", "c", "d", "e"]
    assert (
        model.duals.shape[1]
        == json.loads(Path("changed/manifest.json").read_text())["splits"]["train"]["n_rows"]
    )


def test_names_from_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gone.txt").write_text("a\n\nb\n")
    Path("names.json").write_text('{"c": "x=y"}')
    remove = f"labels remove {folder}/model --labels-file gone.txt --out less"
    assert run(*remove.split()) == 0
    assert Model.open(tmp_path / "less").label_names.to_pylist() == ["c", "d"]
    assert run(*["labels", "rename", "less", "--names-file", "names.json", "--out", "named"]) == 0
    assert Model.open(tmp_path / "named").label_names.to_pylist() == ["x=y", "d"]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["labels", "remove", "MODEL", "z"], "has no label 'z'"),
        (["labels", "remove", "MODEL"], "at least one label"),
        (["labels", "rename", "MODEL", "a"], "is not OLD=NEW"),
        (["labels", "rename", "MODEL", "a=x", "a=y"], "renamed twice"),
        (["labels", "rename", "MODEL", "--names-file", "list.json"], "an object of names"),
        (["labels", "rename", "MODEL", "--names-file", "bad.json"], "is not JSON"),
        (["labels", "remove", "MODEL", "--labels-file", "none.txt"], "there is no file none.txt"),
        (["labels", "add", "MODEL", "--dataset", "DATA"], "nothing to add"),
        (["labels", "merge", "MODEL", "a", "--into", "b", "--dataset", "DATA"], "at least two"),
        (["retrain", "MODEL", "--dataset", "DATA", "--labels", "A"], "did you mean 'a'"),
    ],
)
def test_bad_input(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    fix: str,
) -> None:
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "bad.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    known = {"MODEL": folder / "model", "DATA": folder / "data"}
    assert run(*(known.get(word, word) for word in words), "--out", tmp_path / "new", "--json") == 2
    assert fix in json.loads(capsys.readouterr().err)["message"]
    assert sorted(tmp_path.iterdir()) == before
