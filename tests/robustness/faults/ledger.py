"""Operations acknowledged to clients, in an append-only file.

The invariants compare the store and the files with it.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class Ledger:
    """Writes one line of JSON per acknowledgement, before the client sends its next request.

    It is safe for several threads.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - closed in `close`
        self._path = path
        self._lock = threading.Lock()

    def acknowledged(self, kind: str, id: str, **details: Any) -> None:
        """Record a 2xx answer; kind is job, dataset, model, upload, stop or delete."""
        line = json.dumps({"at": time.time(), "kind": kind, "id": id, **details}, sort_keys=True)
        with self._lock:
            self._file.write(line + "\n")

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the acknowledgements of a kind, in order."""
        with self._lock:
            self._file.flush()
            lines = self._path.read_text().splitlines()
        return [entry for line in lines if (entry := json.loads(line))["kind"] == kind]

    def ids(self, kind: str) -> list[str]:
        """Return the distinct ids of a kind, in order."""
        return list(dict.fromkeys(entry["id"] for entry in self.all(kind)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
