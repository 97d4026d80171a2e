"""The measurements of a row: counts, seconds and notes, written as JSON."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Measurements:
    """One row of the table.

    `runs` counts injected faults. `lost`, `duplicated` and `wrong` count broken promises, which
    fail the row.

    recovery: seconds from a fault until the system is healthy again, as the row defines it. redone:
    share of the work that was done twice. details: others by name. notes: replacements for faults
    that could not be injected on this machine.
    """

    row: str
    title: str
    injected: str = ""
    runs: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    recovery: list[float] = field(default_factory=list)
    redone: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # one sentence per broken promise
    seconds: float = 0.0
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def ok(self) -> bool:
        """Return whether every promise was kept and at least one fault was injected."""
        return self.runs > 0 and not (self.lost or self.duplicated or self.wrong)

    def lose(self, sentence: str) -> None:
        """Count acknowledged data that is gone."""
        self.lost += 1
        self.broken.append(f"lost: {sentence}")

    def double(self, sentence: str) -> None:
        """Count an effect that happened twice."""
        self.duplicated += 1
        self.broken.append(f"duplicated: {sentence}")

    def fault(self, sentence: str) -> None:
        """Count a wrong state or answer."""
        self.wrong += 1
        self.broken.append(f"wrong: {sentence}")

    def expect(self, holds: bool, sentence: str) -> bool:
        """Count a wrong state unless `holds` is true; return `holds`."""
        if not holds:
            self.fault(sentence)
        return holds

    def note(self, sentence: str) -> None:
        """Add a note unless it is there already."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Add the seconds that the block takes to `recovery`."""
        began = time.monotonic()
        yield
        self.recovery.append(time.monotonic() - began)

    def as_dict(self) -> dict[str, Any]:
        """Return the measurements as a dictionary for JSON, with the summaries of the table."""
        shown = {
            name: value for name, value in vars(self).items() if name not in ("recovery", "redone")
        }
        shown["broken"] = [sentence[:300] for sentence in self.broken[:10]]
        return {
            **shown,
            "ok": self.ok,
            "recovery_p50": round(statistics.median(self.recovery), 2) if self.recovery else None,
            "recovery_max": round(max(self.recovery), 2) if self.recovery else None,
            "redone_max": round(max(self.redone), 4) if self.redone else None,
        }

    def line(self) -> str:
        """Return the measurements as one line of JSON."""
        return json.dumps(self.as_dict(), sort_keys=True, default=str)


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed; 0 if empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def table_line(row: dict[str, Any], tests: tuple[str, ...]) -> str:
    """Return the line of a row in the table of docs/reliability.md."""
    pace = ""
    if row["recovery_p50"] is not None:
        pace = f"{row['recovery_p50']:.1f} / {row['recovery_max']:.1f}"
    redone = "" if row["redone_max"] is None else f"{row['redone_max']:.0%}"
    details = [f"{name.replace('_', ' ')} {value}" for name, value in row["details"].items()]
    notes = [note for note in row["notes"] if note != "private namespaces"]
    wrong = [f"{name} {row[name]}" for name in ("lost", "duplicated", "wrong") if row[name]]
    also = dict.fromkeys(name.split("::")[0].removeprefix("tests/") for name in tests)
    cells = [
        *(row[name] for name in ("row", "title", "injected", "runs")),
        *(pace, redone, "; ".join([*wrong, *details, *notes, *row["broken"][:2]]), ", ".join(also)),
    ]
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
