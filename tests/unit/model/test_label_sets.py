"""Label sets: stored by name for all versions of a model, used by filters, REST and CLI."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.naive import search
from tests.support.flat_models import write_fields
from tests.support.live_service import TEXTS, client_of, publish, settings_for
from xcray.arrays import csr_from
from xcray.cli import main as cli
from xcray.client import Client
from xcray.errors import Corrupt, NotFound, ParameterError
from xcray.index.filters import LabelFilter
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.predict import Predictor
from xcray.predict.labels import MAX_FILTERS, positions_by_name
from xcray.service.app import create_app

NAMES = [
    "art",
    "set:odd",
    "music",
    "art",
    "law",
    "Ökologie",
    "",
    "math",
]  # two labels of one name, one that looks like a set


@pytest.fixture
def predictor(tmp_path: Path, rng: np.random.Generator) -> Predictor:
    """Return a random model with awkward names."""
    W = csr_from(rng.normal(size=(len(NAMES), 5)).astype(np.float32))
    about: dict[str, Any] = {
        "solver": "ppdsparse",
        "params": {},
        "dataset_hash": "d",
        "feature_names": list("abcde"),
    }
    return Predictor(
        write_fields(
            tmp_path / "model", W=W, b=rng.normal(size=len(NAMES)), label_names=NAMES, **about
        )
    )


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return a registry with one version of `docs`."""
    out = Registry(tmp_path / "registry")
    publish(out, "docs", tmp_path / "staged")
    return out


# Storage.


def test_there_and_back(registry: Registry) -> None:
    sets = registry.label_sets("docs")
    assert sets.names() == []
    selection = sets.put("safe", ["csv", "io", "csv", "gone"])
    assert (selection.name, selection.labels) == ("safe", ("csv", "io", "gone"))
    sets.put("all", iter(["json"]))
    (registry.root / "docs/sets/caf\udce9.json").touch()  # a name in another encoding than UTF-8
    assert sets.names() == ["all", "safe"]
    assert (
        sets("safe") == Registry(registry.root).label_sets("docs")("safe") == ("csv", "io", "gone")
    )
    sets.put("safe", ["json"])
    assert sets("safe") == ("json",)  # at once, although it was read a moment ago
    sets.delete("safe")
    assert sets.names() == ["all"]
    with pytest.raises(NotFound, match="no label set 'safe'; there are: all"):
        sets.get("safe")
    report = [
        (line["action"], line.get("set"), line.get("labels")) for line in registry.history("docs")
    ][1:]
    assert report == [
        ("set_labels", "safe", 3),
        ("set_labels", "all", 1),
        ("set_labels", "safe", 1),
        ("delete_labels", "safe", None),
    ]
    assert registry.names() == ["docs"]
    assert registry.versions("docs") == [1]


def test_what_is_parsed_is_kept_until_the_file_changes(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = registry.label_sets("docs")
    sets.put("safe", ["csv"])
    path = registry.root / "docs" / "sets" / "safe.json"
    os.utime(path, (1_000_000_000, 1_000_000_000))  # long ago
    first = sets.get("safe")
    assert registry.label_sets("docs").get("safe") is first
    other = Registry(registry.root)
    other.label_sets("docs").put("safe", ["json"])
    assert sets("safe") == ("json",)


@pytest.mark.parametrize("wrong", ["", "../x", "UPPER", "a/b", ".hidden", "con", "x" * 65])
def test_names_of_sets_are_names(registry: Registry, wrong: str) -> None:
    for ask in (
        registry.label_sets("docs").get,
        registry.label_sets("docs").delete,
        lambda name: registry.label_sets("docs").put(name, ["csv"]),
    ):
        with pytest.raises(ParameterError, match="name of a set"):
            ask(wrong)


def test_invalid_lists_of_names(registry: Registry) -> None:
    sets: Any = registry.label_sets("docs")
    for wrong, says in (
        ([], "no label"),
        ("csv", "not one text"),
        ([1], "not 1"),
        ([None], "None"),
        ([""], "label names"),
    ):
        with pytest.raises(ParameterError, match=says):
            sets.put("safe", wrong)
    with pytest.raises(NotFound, match="no model 'missing'"):
        registry.label_sets("missing").put("safe", ["csv"])
    assert sets.names() == []
    sets.put("safe", ["csv"])
    path = registry.root / "docs" / "sets" / "safe.json"
    for content in (
        '{"schema_version": 2, "labels": ["a"], "changed": "x"}',
        "[]",
        '{"schema_version": 1, "labels": [1], "changed": ""}',
    ):
        path.write_text(content)
        with pytest.raises(Corrupt, match="write it again"):
            sets.get("safe")


def test_readers_see_whole_sets_while_they_change(registry: Registry) -> None:
    sets, versions = (
        registry.label_sets("docs"),
        [tuple(f"{n}-{i}" for i in range(200)) for n in range(4)],
    )
    sets.put("safe", versions[0])
    with ThreadPoolExecutor(3) as pool:
        writing = pool.submit(
            lambda: [sets.put("safe", labels) for _ in range(5) for labels in versions]
        )
        while not writing.done():
            assert sets("safe") in versions
        writing.result()


# Lookup.


def test_filters_by_number_name_and_set(predictor: Predictor, rng: np.random.Generator) -> None:
    fields = {"good": ["music", "art", "unheard of"], "bad": ["law"]}

    def sets(name: str) -> list[str]:
        if name not in fields:
            raise NotFound(f"no {name}")
        return fields[name]

    def numbers(*query: Any) -> list[int]:
        result = predictor.filter(*query, sets=sets)
        assert result is not None
        return result.labels.tolist()

    everything = list(range(len(NAMES)))
    assert predictor.filter(None, None, sets=sets) is None
    assert numbers([4, "math", 4]) == [4, 7]
    assert numbers(["art"]) == [0, 3]  # both labels of this name
    assert numbers(["set:good"]) == [0, 2, 3]
    assert numbers(["set:good", "law", 6], ["art"]) == [2, 4, 6]
    assert numbers(None, ["set:bad", "set:good"]) == [1, 5, 6, 7]
    # No set has this name, but a label has.
    assert numbers(["set:odd", "Ökologie", ""]) == [
        1,
        5,
        6,
    ]
    assert numbers(np.array([3, 1, 3])) == [1, 3]
    assert numbers(None, []) == everything
    fields["odd"] = ["math"]
    assert numbers(["set:odd"]) == [7]  # now a set has this name
    plain = predictor.filter(["set:odd"])
    assert plain is not None
    assert plain.labels.tolist() == [1]
    assert predictor.unknown_labels(fields["good"]) == ["unheard of"]
    ready = LabelFilter.of(len(NAMES), [1, 2])
    assert predictor.filter(ready) is ready
    rows = rng.normal(size=(20, 5)).astype(np.float32)
    scores = search.all_scores(csr_from(rows), predictor.model.W, predictor.model.b)
    answer = predictor.search(rows, 3, allow=predictor.filter(["set:good", "law"], [3], sets=sets))
    allowed = np.array([0, 2, 4])
    for i in range(20):
        best = allowed[np.argsort(-scores[i, allowed], kind="stable")]
        assert answer.labels[i].tolist() == best.tolist()
        assert answer.scores[i].tolist() == scores[i, best].tolist()


def test_invalid_filters_are_refused(predictor: Predictor) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        (["missing"], NotFound, "no label 'missing'"),
        (["set:missing"], NotFound, "no label and no set 'set:missing'"),
        (["set:UP/.."], NotFound, "no label and no set"),
        ([8], NotFound, "are 0 to 7"),
        ([-1], NotFound, "are 0 to 7"),
        ([1.5], ParameterError, "a number or a name"),
        ([True], ParameterError, "a number or a name"),
        ([["art"]], ParameterError, "a number or a name"),
        ("art", ParameterError, r"\['art'\]"),
        ([], ParameterError, "no label is allowed"),
    ]
    for request, kind, says in wrong:
        with pytest.raises(kind, match=says):
            predictor.filter(request)
    with pytest.raises(ParameterError, match="no label is allowed"):
        predictor.filter(["law"], ["law"])
    with pytest.raises(ParameterError, match=r"a LabelFilter can.t be combined"):
        predictor.filter(LabelFilter.of(8, [1]), [2])


def test_recent_filters_are_cached(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    selection = ["music"]
    first = predictor.filter(["law", "set:s"], [2], sets=lambda _: selection)
    assert predictor.filter(("set:s", "law"), [2], sets=lambda _: list(selection)) is first
    selection.append("math")
    second = predictor.filter(["law", "set:s"], [2], sets=lambda _: selection)
    assert first is not None
    assert second is not None
    assert (first.labels.tolist(), second.labels.tolist()) == ([4], [4, 7])
    for number in range(MAX_FILTERS):
        predictor.filter([number % 8], [] if number < 8 else None)
    # Old filters are evicted; the cache does not grow.
    assert predictor.filter(["law", "set:s"], [2], sets=lambda _: selection) is not second


def test_positions_of_many_names(predictor: Predictor) -> None:
    result = positions_by_name(predictor.model, {"art", "math", "missing", ""})
    assert {name: at.tolist() for name, at in result.items()} == {
        "": [6],
        "art": [0, 3],
        "math": [7],
    }
    assert (
        positions_by_name(predictor.model, [])
        == {}
        == positions_by_name(predictor.model, ["missing"])
    )


# REST and the command line.


def test_over_rest_and_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = create_app(settings_for(tmp_path / "home"))
    registry: Registry = app.state.app_state.registry
    publish(registry, "docs", tmp_path / "one")
    publish(registry, "docs", tmp_path / "two", labels=("csv", "json", "xml", "io"))
    with client_of(app) as http:
        url = str(http.base_url)
        assert http.get("/v1/models/docs/label-sets").json() == {"sets": []}
        put = http.put("/v1/models/docs/label-sets/files", json={"labels": ["csv", "socket", "io"]})
        assert put.status_code == 200
        assert (put.json()["labels"], put.json()["version"], put.json()["unknown"]) == (
            ["csv", "socket", "io"],
            2,
            ["socket"],
        )
        assert (
            http.get("/v1/models/docs/label-sets/files", params={"version": 1}).json()["unknown"]
            == []
        )
        listed = http.get("/v1/models/docs/label-sets").json()["sets"]
        assert [(one["name"], one["n_labels"]) for one in listed] == [("files", 3)]
        for body, status in (
            ({}, 422),
            ({"labels": []}, 422),
            ({"labels": [1]}, 422),
            ({"labels": ["a"], "x": 1}, 422),
        ):
            assert http.put("/v1/models/docs/label-sets/files", json=body).status_code == status
        assert (
            http.put("/v1/models/missing/label-sets/files", json={"labels": ["a"]}).status_code
            == 404
        )
        assert http.get("/v1/models/docs/label-sets/none").json()["code"] == "NO_SET"
        assert (
            http.get("/v1/models/docs/label-sets/files", params={"version": 9}).status_code == 404
        )
        with Client(url) as client:
            assert client.models.sets("docs") == listed
            assert client.models.get_set("docs", "files", version=1)["version"] == 1
            assert client.models.put_set("docs", "one", ("json",))["labels"] == ["json"]
            client.models.delete_set("docs", "one")
            answer = client.predict("docs", [TEXTS[0]], top_k=4, allow=["set:files"])[
                "predictions"
            ][0]
            assert sorted(answer["labels"]) == ["csv", "io"]
            answer = client.predict(
                "docs:1", [TEXTS[0]], top_k=4, deny=["set:files"], certificate=True
            )["predictions"][0]
            assert answer["labels"] == ["json"]
            assert answer["certificate"]["exact"]
            with pytest.raises(NotFound):
                client.predict("docs", [TEXTS[0]], allow=["set:none"])

        def run(*arguments: str) -> tuple[int, str]:
            code = cli.main([*arguments, "--server", url])
            return code, capsys.readouterr().out

        assert run("models", "label-sets", "put", "docs", "web", "xml", "json")[0] == 0
        assert run("models", "label-sets", "show", "docs", "web")[1].split() == ["xml", "json"]
        code, report = run("models", "label-sets", "list", "docs", "--json")
        assert (code, [one["name"] for one in json.loads(report)["sets"]]) == (0, ["files", "web"])
        report = run("predict", "docs", TEXTS[0], "-k", "4", "--allow", "set:web", "--json")[1]
        assert sorted(one["label"] for one in json.loads(report)["predictions"][0]["labels"]) == [
            "json",
            "xml",
        ]
        assert run("models", "label-sets", "delete", "docs", "web")[0] == 0
        assert run("models", "label-sets", "show", "docs", "web")[0] == 2
        assert run("models", "label-sets", "put", "docs", "web")[0] == 2
        assert http.delete("/v1/models/docs/label-sets/files").status_code == 204
        assert http.delete("/v1/models/docs/label-sets/files").status_code == 404
    # The directory of a version gives access to the sets of its model, without a server.
    directory = str(registry.resolve("docs:1"))
    registry.label_sets("docs").put("net", ["socket"])
    assert cli.main(["predict", directory, TEXTS[0], "--allow", "set:net", "--json"]) == 0
    assert [
        one["label"] for one in json.loads(capsys.readouterr().out)["predictions"][0]["labels"]
    ] == ["socket"]
    assert Model.open(directory).n_labels == 4
