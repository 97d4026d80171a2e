"""Remembered checksums: unchanged files are not read again, every change is detected."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.support.waiting import until
from xcray.errors import Corrupt
from xcray.storage import atomic
from xcray.storage import verified as module
from xcray.storage.atomic import file_digests
from xcray.storage.verified import VerifiedFiles


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a folder with two files, written long enough ago to be remembered."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_bytes(b"0123456789" * 100)
    (folder / "b").write_bytes(b"x")
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the names of the files that are hashed."""
    names = list[str]()
    real = atomic.sha256_file

    def counted(path: Path, start: int, size: int) -> str:
        names.append(path.name)
        return real(path, start, size)

    monkeypatch.setattr(atomic, "sha256_file", counted)
    monkeypatch.setattr(module, "SETTLED_NS", -1)
    return names


def test_unchanged_files_are_hashed_once(
    directory: Path, tmp_path: Path, hashed: list[str]
) -> None:
    digests = file_digests(directory)
    hashed.clear()
    for _ in range(3):
        VerifiedFiles(tmp_path / "memory.json").verify(directory, digests)
    assert sorted(hashed) == ["a", "b"]


def test_a_change_that_keeps_size_and_time_is_detected(
    directory: Path, tmp_path: Path, hashed: list[str]
) -> None:
    digests, path = file_digests(directory), directory / "a"
    files = VerifiedFiles(tmp_path / "memory.json")
    files.verify(directory, digests)
    before = path.stat()
    with open(path, "r+b") as out:
        out.write(b"9")

    def set_time_back() -> bool:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return path.stat().st_ctime_ns > before.st_ctime_ns

    until(set_time_back)  # at the next tick of the file system's clock
    with pytest.raises(Corrupt, match="file a is not what was written"):
        files.verify(directory, digests)


def test_a_file_that_has_just_changed_is_not_remembered(
    directory: Path, tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED_NS", 3_600 * 10**9)
    digests = file_digests(directory)
    files = VerifiedFiles(tmp_path / "memory.json")
    files.verify(directory, digests)
    hashed.clear()
    files.verify(directory, digests)
    assert sorted(hashed) == ["a", "b"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": 3}', b'{"files": [[1]]}'])
def test_a_broken_memory_only_costs_time(
    directory: Path, tmp_path: Path, hashed: list[str], content: bytes
) -> None:
    memory = tmp_path / "memory.json"
    memory.write_bytes(content)
    digests = file_digests(directory)
    VerifiedFiles(memory).verify(directory, digests)
    hashed.clear()
    VerifiedFiles(memory).verify(directory, digests)
    assert hashed == []


def test_without_a_writable_memory_files_are_still_verified(
    directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    files = VerifiedFiles(tmp_path / "file" / "memory.json")
    digests = file_digests(directory)
    files.verify(directory, digests)
    (directory / "b").write_bytes(b"y")
    with pytest.raises(Corrupt, match="file b"):
        files.verify(directory, digests)


def test_a_removed_file_is_named(directory: Path, tmp_path: Path) -> None:
    files, digests = VerifiedFiles(tmp_path / "memory.json"), file_digests(directory)
    (directory / "b").unlink()
    with pytest.raises(Corrupt, match="file b is missing"):
        files.verify(directory, digests)


def test_a_large_file_is_hashed_by_chunks(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte is read once, by files and by downloads; the checksum covers every chunk."""
    monkeypatch.setattr(atomic, "CHUNK_BYTES", 300)
    monkeypatch.setattr(atomic, "PARALLEL_BYTES", 1)
    read, whole = list[tuple[object, ...]](), atomic.sha256_file
    monkeypatch.setattr(atomic, "sha256_file", lambda *piece: read.append(piece) or whole(*piece))
    digests, path = file_digests(directory), directory / "a"
    assert sorted(piece[1:] for piece in read if piece[0] == path) == [
        (0, 300),
        (300, 300),
        (600, 300),
        (900, 100),
    ]
    content = path.read_bytes()
    pieces = [content[i : i + 300] for i in range(0, 1000, 300)]
    sums = "".join(hashlib.sha256(piece).hexdigest() for piece in pieces)
    assert digests["a"]["sha256"] == hashlib.sha256(sums.encode()).hexdigest()
    assert digests["a"] == atomic.file_entry(path)
    for step in (1, 7, 300, 450, 1000):
        digest = atomic.FileHash()
        for at in range(0, 1000, step):
            digest.update(content[at : at + step])
        assert digest.hexdigest() == digests["a"]["sha256"]
    assert digests["b"]["sha256"] == hashlib.sha256((directory / "b").read_bytes()).hexdigest()
    atomic.verify_files(directory, digests)
    for at in (0, 299, 300, 899, 900, 999):
        path.write_bytes(content[:at] + b"?" + content[at + 1 :])
        with pytest.raises(Corrupt, match="file a is not what was written"):
            atomic.verify_files(directory, digests)
