"""Locks on files: who holds one, who waits, who shares."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from xcray.system.file_lock import exclusive_lock, try_lock, wait_for_lock


def test_a_lock_is_free_once_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "a") as first, open(path, "a") as second:
        assert try_lock(first)
        assert not try_lock(second)
        assert not wait_for_lock(second, 0.0)
        first.close()
        assert try_lock(second)


def test_a_shared_lock_excludes_only_holders_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with open(path, "a") as first, open(path, "a") as second, open(path, "a") as third:
        assert try_lock(first, shared=True)
        assert try_lock(second, shared=True)
        assert not try_lock(third)


def test_a_waiter_gets_the_lock_or_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "below" / "lock"
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with exclusive_lock(path):
            entered.set()
            assert leave.wait(300)

    def stop() -> None:
        raise InterruptedError

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(300)
    with open(path, "a") as waiter:
        with pytest.raises(InterruptedError):
            wait_for_lock(waiter, 300.0, on_wait=stop)
        assert wait_for_lock(waiter, 300.0, poll_seconds=0.01, on_wait=leave.set)
    holder.join()
