"""The registry: numbers are used once, versions are immutable, aliases move atomically."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.staged_models import bias, staged
from xcray.errors import Conflict, Corrupt, NotFound, ParameterError
from xcray.model import registry as registry_module
from xcray.model.model import Model
from xcray.model.registry import Registry
from xcray.storage.atomic import file_digests, write_json


def test_publish_moves_the_model_in(registry: Registry, tmp_path: Path) -> None:
    assert not (tmp_path / "staged-1").exists()
    assert registry.names() == ["news"]
    assert registry.versions("news") == [1, 2, 3]
    assert registry.resolve("news") == tmp_path / "registry" / "news" / "versions" / "3"
    assert [
        bias(registry, reference) for reference in ("news", "news:1", "news:2", "news@latest")
    ] == [3, 1, 2, 3]


def test_aliases_move_and_versions_do_not(registry: Registry) -> None:
    before = file_digests(registry.root / "news" / "versions")
    registry.aliases.set("news", "champion", 1)
    assert bias(registry, "news@champion") == 1
    registry.aliases.set("news", "champion", 2)
    assert bias(registry, "news@champion") == 2
    assert registry.aliases.of("news") == {"champion": 2, "latest": 3}
    registry.aliases.delete("news", "champion")
    assert registry.aliases.of("news") == {"latest": 3}
    with pytest.raises(NotFound, match="no alias 'champion'; it has latest"):
        registry.resolve("news@champion")
    assert file_digests(registry.root / "news" / "versions") == before


def test_summaries_come_from_the_manifests(registry: Registry, tmp_path: Path) -> None:
    registry.aliases.set("news", "champion", 2)
    registry.publish("art", staged(tmp_path / "art"))
    versions = [(name, n) for name in registry.names() for n in registry.versions(name)]
    entries = [registry.describe(*each) for each in versions]
    assert [(entry.name, entry.version, entry.aliases) for entry in entries] == [
        ("art", 1, ("latest",)),
        ("news", 1, ()),
        ("news", 2, ("champion",)),
        ("news", 3, ("latest",)),
    ]
    entry = registry.describe("news", 2)
    assert (entry.solver, entry.shape, entry.nnz, entry.measures, entry.dataset_hash) == (
        "ppdsparse",
        (2, 2),
        2,
        {"P@1": 0.5},
        "d",
    )
    assert entry.sha256 == Model.open(entry.path).sha256
    assert entry.n_bytes == Model.open(entry.path).n_bytes


def test_a_manifest_is_parsed_once_while_it_is_the_same(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, paths = registry_module.read_manifest, []
    monkeypatch.setattr(
        registry_module, "read_manifest", lambda path: paths.append(path) or read(path)
    )
    first = registry.describe("news", 2)
    registry.aliases.set("news", "champion", 2)
    second = registry.describe("news", 2)
    assert (first.aliases, second.aliases) == ((), ("champion",))
    assert (first.sha256, len(paths)) == (second.sha256, 1)
    manifest = registry.resolve("news:2") / "manifest.json"
    manifest.write_text(manifest.read_text() + " damaged")
    with pytest.raises(Corrupt):
        registry.describe("news", 2)
    manifest.unlink()
    with pytest.raises(NotFound):
        registry.describe("news", 2)


def test_a_version_in_use_can_not_be_deleted(registry: Registry) -> None:
    registry.aliases.set("news", "champion", 2)
    with pytest.raises(Conflict, match="in use as champion; move or delete"):
        registry.delete("news", 2)
    assert bias(registry, "news:2") == 2
    registry.aliases.set("news", "champion", 1)
    registry.delete("news", 2)
    assert registry.versions("news") == [1, 3]
    with pytest.raises(NotFound, match="no model news:2; versions: 1, 3"):
        registry.resolve("news:2")
    assert sorted(os.listdir(registry.root / "news" / "versions")) == ["1", "3"]


def test_a_deleted_number_is_not_given_out_again(registry: Registry, tmp_path: Path) -> None:
    registry.delete("news", 3)
    assert bias(registry, "news") == 2
    assert registry.publish("news", staged(tmp_path / "again", 9)) == 4
    for number in (1, 2, 4):
        registry.delete("news", number)
    assert registry.names() == []
    assert registry.publish("news", staged(tmp_path / "later", 9)) == 5


def test_a_mapped_model_outlives_its_version(registry: Registry) -> None:
    model = Model.open(registry.resolve("news:1"))
    registry.delete("news", 1)
    assert model.W.to_scipy().toarray().tolist() == [[1, 0], [0, 2]]


@pytest.mark.parametrize(
    "reference", ["nothing", "nothing:1", "nothing@latest", "news:4", "news:0", "news@missing"]
)
def test_what_is_not_there_is_not_found(registry: Registry, reference: str) -> None:
    with pytest.raises(NotFound):
        registry.resolve(reference)


@pytest.mark.parametrize(
    "reference",
    [
        *(
            "",
            "..",
            "../news",
            "news/../news",
            "/etc",
            "News",
            "news.",
            "news\n",
            "%2e%2e",
            ".hidden",
            "con",
            "a" * 65,
        ),
        *(
            "news:",
            "news:-1",
            "news:1.0",
            "news:²",
            "news:../1",
            "news:1@x",
            "news:" + "9" * 50,
            ":1",
            "news@x@y\0",
            "@champion",
        ),
    ],
)
def test_strange_references_are_refused_and_touch_nothing(
    registry: Registry, reference: str
) -> None:
    before = sorted(path.as_posix() for path in registry.root.rglob("*"))
    with pytest.raises((ParameterError, NotFound)):
        registry.resolve(reference)
    assert sorted(path.as_posix() for path in registry.root.rglob("*")) == before


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "A", "a" * 65, "a\0", "aux"])
def test_strange_names_are_refused(registry: Registry, tmp_path: Path, name: str) -> None:
    model = staged(tmp_path / "strange")
    for change in (
        lambda: registry.publish(name, model),
        lambda: registry.aliases.set("news", name, 1),
        lambda: registry.versions(name),
    ):
        with pytest.raises(ParameterError, match="not allowed"):
            change()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["registry", "strange"]


def test_changes_to_missing_versions_are_refused(registry: Registry) -> None:
    with pytest.raises(ParameterError, match="always means the highest"):
        registry.aliases.set("news", "latest", 1)
    with pytest.raises(NotFound, match="news:7"):
        registry.aliases.set("news", "champion", 7)
    with pytest.raises(NotFound, match="no alias 'champion'"):
        registry.aliases.delete("news", "champion")
    with pytest.raises(NotFound, match="no model 'nothing'"):
        registry.aliases.delete("nothing", "champion")
    with pytest.raises(NotFound, match="no model 'nothing'"):
        registry.delete("nothing", 1)
    assert Registry(registry.root / "empty").names() == []


def test_only_whole_models_are_published(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        registry.publish("news", tmp_path / "nowhere")
    damaged = staged(tmp_path / "damaged")
    content = bytearray((damaged / "bias.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / "bias.arrow").write_bytes(content)
    with pytest.raises(Corrupt, match=r"bias\.arrow"):
        registry.publish("news", damaged)
    assert registry.versions("news") == [1, 2, 3]


def test_a_model_is_complete_from_another_file_system(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, model = os.rename, staged(tmp_path / "elsewhere", 4)

    def far(source: Path, target: Path) -> None:
        if Path(source) == model:
            raise OSError(errno.EXDEV, "another file system")
        rename(source, target)

    monkeypatch.setattr(os, "rename", far)
    assert registry.publish("news", model) == 4
    assert bias(registry, "news:4") == 4
    assert not model.exists()
    assert sorted(os.listdir(registry.root / "news" / "versions")) == ["1", "2", "3", "4"]


def test_every_change_leaves_a_line(registry: Registry) -> None:
    registry.aliases.set("news", "champion", 1)
    registry.aliases.set("news", "champion", 2)
    registry.aliases.delete("news", "champion")
    registry.delete("news", 1)
    lines = [
        {key: value for key, value in line.items() if key not in ("at", "sha256")}
        for line in registry.history("news")
    ]
    assert lines == [
        {"action": "publish", "version": 1},
        {"action": "publish", "version": 2},
        {"action": "publish", "version": 3},
        {"action": "set_alias", "alias": "champion", "version": 1, "before": None},
        {"action": "set_alias", "alias": "champion", "version": 2, "before": 1},
        {"action": "delete_alias", "alias": "champion", "before": 2},
        {"action": "delete", "version": 1},
    ]
    assert all(line["at"].endswith("+00:00") for line in registry.history("news"))


def test_a_line_that_was_cut_off_leaves_the_others(registry: Registry) -> None:
    with (registry.root / "news" / "history.jsonl").open("a") as file:
        file.write('{"at": "2026-01-31T1\n{"split": [{"version": 1}')
    assert len(registry.history("news")) == 3
    registry.aliases.set("news", "champion", 1)
    registry.aliases.set("news", "champion", 2)
    assert len(registry.history("news")) == 5
    assert registry.previous_versions("news", "champion") == [1]


PUBLISH = """
import sys
from pathlib import Path
from xcray.model.registry import Registry
root, *models = map(Path, sys.argv[1:])
for model in models:
    number = Registry(root).publish("news", model)
    Registry(root).aliases.set("news", model.name, number)
    print(model.name, number)
"""


def test_processes_that_publish_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    first = staged(tmp_path / "first")
    groups = [[tmp_path / f"m{process}-{i}" for i in range(4)] for process in range(2)]
    for model in (model for group in groups for model in group):
        shutil.copytree(first, model)
    command = [sys.executable, "-c", PUBLISH, str(tmp_path / "registry")]
    running = [
        subprocess.Popen([*command, *map(str, group)], stdout=subprocess.PIPE, text=True)
        for group in groups
    ]
    outputs = [process.communicate(timeout=600)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 2
    entries = {
        name: int(number)
        for output in outputs
        for name, number in (line.split() for line in output.splitlines())
    }
    registry = Registry(tmp_path / "registry")
    assert sorted(entries.values()) == list(range(1, 9)) == registry.versions("news")
    assert registry.aliases.of("news") == {**entries, "latest": 8}
    assert len(registry.history("news")) == 16
    for number in registry.versions("news"):
        Model.open(registry.resolve(f"news:{number}"))


def test_readers_see_a_whole_model_whatever_changes(registry: Registry, tmp_path: Path) -> None:
    registry.aliases.set("news", "champion", 1)
    models = [staged(tmp_path / f"new-{i}", i) for i in range(12)]

    def change() -> None:
        for model in models:
            registry.aliases.set("news", "champion", registry.publish("news", model))

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        values = []
        while not changing.done():
            values.append(bias(registry, "news@champion"))
        changing.result()
    assert set(values) <= set(np.arange(12.0))
    assert bias(registry, "news@champion") == 11


def test_a_publisher_that_died_before_its_record_loses_nothing(
    registry: Registry, tmp_path: Path
) -> None:
    # Version 3 exists, but its record is missing.
    write_json(registry.root / "news" / "aliases.json", {"aliases": {}, "highest": 2})
    assert bias(registry, "news") == 3
    registry.delete("news", 3)
    assert registry.publish("news", staged(tmp_path / "next", 9)) == 4
