"""The order of writes, syncs and renames, without which a loss of power leaves half a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xcray.storage.atomic import create_staging_directory, publish_directory, write_bytes


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the syncs and renames so far as (call, name of the file or directory)."""
    seen: list[tuple[str, str]] = []

    def record(name: str, of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def recorded(*arguments: Any) -> Any:
            seen.append((name, Path(of(*arguments)).name))
            return real(*arguments)

        monkeypatch.setattr(os, name, recorded)

    record("fsync", lambda handle: os.readlink(f"/proc/self/fd/{handle}"))
    record("replace", lambda source, target: target)
    record("rename", lambda source, target: target)
    return seen


def test_a_file_is_synced_before_its_rename_and_its_directory_after(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_bytes(folder / "file", b"content")
    assert [call for call, _ in calls] == ["fsync", "replace", "fsync"]
    assert [name for _, name in calls][1:] == ["file", "folder"]
    assert calls[0][1].startswith(".file.")


def test_a_directory_is_synced_with_all_its_folders_before_its_rename_and_the_parent_after(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    target = tmp_path / "models" / "model"
    staged = create_staging_directory(target)
    (staged / "index").mkdir()
    (staged / "index" / "lists").write_bytes(b"content")
    publish_directory(staged, target)
    renamed = calls.index(("rename", "model"))
    assert {name for _, name in calls[:renamed]} == {"index", staged.name}
    assert calls[renamed + 1 :] == [("fsync", "models")]
