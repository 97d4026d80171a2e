"""Lines of the log are written in batches, and none is lost."""

from __future__ import annotations

import io
import logging
import threading
from typing import Any

import pytest

from xcray.telemetry import logging as log
from xcray.telemetry.logging import BatchingHandler


def record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord("xcray", level, "", 0, message, (), None)


def test_lines_are_written_with_a_warning_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WRITE_SECONDS", 3600.0)
    monkeypatch.setattr(log, "MAX_WAITING_LINES", 3)
    stream = io.StringIO()
    handler = BatchingHandler(stream)
    handler.handle(record(logging.INFO, "a"))
    handler.handle(record(logging.INFO, "b"))
    assert stream.getvalue() == ""
    handler.handle(record(logging.WARNING, "c"))
    assert stream.getvalue() == "a\nb\nc\n"
    for _ in range(4):
        handler.handle(record(logging.INFO, "d"))
    assert stream.getvalue() == "a\nb\nc\n" + "d\n" * 3
    handler.close()
    assert stream.getvalue() == "a\nb\nc\n" + "d\n" * 4


def test_lines_are_written_after_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WRITE_SECONDS", 0.01)
    written = threading.Event()

    class Stream(io.StringIO):
        def flush(self) -> None:
            written.set()

    handler = BatchingHandler(Stream())
    handler.handle(record(logging.INFO, "a"))
    assert written.wait(600)
    handler.close()


def test_a_batch_is_one_write_to_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WRITE_SECONDS", 3600.0)
    writes = []

    class Raw(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            writes.append(bytes(data))
            return len(data)

    handler = BatchingHandler(io.TextIOWrapper(io.BufferedWriter(Raw()), line_buffering=True))
    for _ in range(900):
        handler.handle(record(logging.INFO, "a" * 150))
    handler.close()
    assert writes == [(b"a" * 150 + b"\n") * 900]


def test_a_stream_that_fails_does_not_fail_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WRITE_SECONDS", 3600.0)
    stream = io.StringIO()
    handler = BatchingHandler(stream)
    stream.close()
    handler.handle(record(logging.ERROR, "a"))
    handler.close()


def test_a_forked_process_does_not_write_the_lines_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "WRITE_SECONDS", 3600.0)
    stream = io.StringIO()
    handler = BatchingHandler(stream)
    handler.handle(record(logging.INFO, "a"))
    monkeypatch.setattr(handler, "_process", -1)
    handler.flush()
    assert stream.getvalue() == ""
    monkeypatch.undo()
    handler.close()
    assert stream.getvalue() == "a\n"
