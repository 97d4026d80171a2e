"""Data sets that are built from uploads with a vocabulary."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from xcray.data.dataset import Dataset
from xcray.data.label_texts import open_label_texts
from xcray.service.datasets.ingest import run_build


@pytest.mark.parametrize(
    "vocabulary", ["a:1\tCat\na:9\tQuokka\n", '\n{"id": "a:1", "name": "Cat"}\n']
)
def test_a_vocabulary_is_stored_with_the_data_set(tmp_path: Path, vocabulary: str) -> None:
    """Its content decides how it is read. A build that was interrupted after the rows ends it."""
    request = build_request(tmp_path, vocabulary)
    for _ in range(2):
        outcome = run_build(request, tmp_path)
        assert outcome["stats"]["label_texts"] == {"labels": 1, "others": vocabulary.count("a:9")}
    texts = open_label_texts(Dataset.open(tmp_path / "data", verify=True))
    assert texts is not None
    assert texts.names["a:1"] == "Cat"


@pytest.mark.parametrize(
    ("vocabulary", "code", "line"),
    [("x\tCat\n", "NO_KNOWN_LABEL", None), ("a:1\tCat\na:2\n", "CSV_FIELDS", 2)],
)
def test_a_wrong_vocabulary_fails_the_build(
    tmp_path: Path, vocabulary: str, code: str, line: int | None
) -> None:
    outcome = run_build(build_request(tmp_path, vocabulary), tmp_path)
    assert outcome["problem"]["code"] == code
    assert not (tmp_path / "data").exists()
    assert outcome["problem"].get("line") == line


def test_a_full_disk_is_not_reported_as_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("xcray.service.datasets.ingest.build", fail)
    outcome = run_build(build_request(tmp_path, "a:1\tCat\n"), tmp_path)
    assert outcome["problem"]["code"] == "DISK_FULL"


def build_request(folder: Path, vocabulary: str) -> dict[str, object]:
    """Write uploads as the service keeps them, and return the request of their build."""
    rows = folder / "train.jsonl"
    rows.write_text(json.dumps({"text": "a cat", "labels": ["a:1"]}) + "\n")
    (folder / "labels").write_text(vocabulary)
    sources = {"train": str(rows), "labels": str(folder / "labels")}
    target = str(folder / "data")
    return {"format": "jsonl", "name": "d", "options": {}, "sources": sources, "target": target}
