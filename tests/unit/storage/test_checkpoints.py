"""Checkpoints: complete or not used, two kept, saved so often that it costs little."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xcray.storage import checkpoints
from xcray.storage.checkpoints import CheckpointFolder, TrainingState


def state(number: int) -> TrainingState:
    """Return a state after a round."""
    arrays = {"W": np.full((2, 3), number, np.float64)}
    return TrainingState({"number": number}, {"weights": lambda: arrays, "more": dict})


def number_of(found: TrainingState | None) -> int | None:
    """Return the round of a checkpoint, after a look at its arrays."""
    if found is None:
        return None
    number = int(found.note["number"])
    np.testing.assert_array_equal(found.groups["weights"]()["W"], np.full((2, 3), number))
    assert not found.groups["more"]()
    return number


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    assert CheckpointFolder(folder).newest() is None
    assert not folder.exists()
    saved = CheckpointFolder(folder)
    for number in (1, 2, 10):
        saved.save(number, state(number))
    assert sorted(each.name for each in folder.iterdir()) == [
        "checkpoint-000002",
        "checkpoint-000010",
    ]
    assert number_of(CheckpointFolder(folder).newest()) == 10
    saved.clear()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["checkpoint.json", "weights.arrow"])
@pytest.mark.parametrize("damage", ["cut", "zeros", "missing"])
def test_a_damaged_one_is_set_aside_and_the_one_before_is_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    for number in (1, 2):
        CheckpointFolder(tmp_path).save(number, state(number))
    file = tmp_path / "checkpoint-000002" / name
    content = bytearray(file.read_bytes())
    if damage == "zeros":
        at = content.index(np.float64(2).tobytes()) if name != "checkpoint.json" else 9
        content[at : at + 8] = bytes(8)
    file.write_bytes(content if damage == "zeros" else content[:-7])
    if damage == "missing":
        file.unlink()
    found = CheckpointFolder(tmp_path)
    assert number_of(found.newest()) == 1
    assert found.damaged == ["checkpoint-000002"]
    assert (tmp_path / "checkpoint-000002.damaged").is_dir()


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-000001.abc.part").mkdir(parents=True)
    assert CheckpointFolder(tmp_path).newest() is None
    assert not list(tmp_path.iterdir())


def test_a_full_disk_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = CheckpointFolder(tmp_path)
    saved.save(1, state(1))

    def fill(path: Path, content: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_json", fill)
    with pytest.raises(OSError, match="No space"):
        saved.save(2, state(2))
    assert [each.name for each in tmp_path.iterdir()] == ["checkpoint-000001"]


def test_saving_takes_at_most_a_twentieth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save of 0.3 s is repeated after 5.7 s of work; a fast one after a second."""
    now = [100.0]
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now[0]))
    saved = CheckpointFolder(tmp_path)

    def due_after(seconds: float) -> bool:
        now[0] += seconds
        return saved.due

    def slow() -> dict[str, Any]:
        now[0] += 0.3
        return {}

    assert (due_after(0.9), due_after(0.2)) == (False, True)
    saved.save(1, state(1))
    assert (due_after(0.9), due_after(0.2)) == (False, True)
    saved.save(2, TrainingState({}, {"slow": slow}))
    assert (due_after(5.6), due_after(0.2)) == (False, True)
