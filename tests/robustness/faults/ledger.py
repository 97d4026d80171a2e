"""What clients were told: an append-only file of acknowledged operations, which later is held
against the store and the files.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class Ledger:
    """One line of JSON for each acknowledgement, written through before the next request is sent.
    Safe for many threads.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - closed in `close`
        self._path = path
        self._lock = threading.Lock()

    def acknowledged(self, kind: str, id: str, **facts: Any) -> None:
        """A 2xx answer about a thing: kind is job, dataset, model, upload, stop, delete."""
        line = json.dumps({"at": time.time(), "kind": kind, "id": id, **facts}, sort_keys=True)
        with self._lock:
            self._file.write(line + "\n")

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The acknowledgements of a kind, in order."""
        with self._lock:
            self._file.flush()
            lines = self._path.read_text().splitlines()
        return [entry for line in lines if (entry := json.loads(line))["kind"] == kind]

    def ids(self, kind: str) -> list[str]:
        """Their ids, each once, in order."""
        return list(dict.fromkeys(entry["id"] for entry in self.all(kind)))

    def close(self) -> None:
        """End it."""
        self._file.close()
