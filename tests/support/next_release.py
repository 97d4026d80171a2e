"""Simulated next releases of this program, with more migration steps.

`upgrade_to` runs steps on a store. `program` writes the whole program, which `run_next` runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xcray.jobs.database.engine import Database
from xcray.jobs.database.migrations import HEAD, STEPS, MigrationStep
from xcray.jobs.database.upgrade import upgrade_database

ROOT = Path(__file__).parents[2]
MIGRATIONS = Path("xcray/jobs/database/migrations.py")


def next_steps(*statements: Sequence[str], oldest: int = HEAD) -> tuple[MigrationStep, ...]:
    """Return the existing steps, and one more for each group of statements."""
    added = (
        MigrationStep(HEAD + n, oldest, tuple(group)) for n, group in enumerate(statements, start=1)
    )
    return (*STEPS, *added)


# two steps that only add
ADDED = next_steps(
    (
        "ALTER TABLE jobs ADD COLUMN colour TEXT",
        "ALTER TABLE jobs ADD COLUMN tries INTEGER DEFAULT 0 NOT NULL",
        "ALTER TABLE keys ADD COLUMN tries INTEGER DEFAULT 0 NOT NULL",
        "CREATE TABLE places (id TEXT PRIMARY KEY)",
    ),
    ("CREATE INDEX jobs_colour ON jobs (colour)",),
)
FOLLOWING = ADDED[-1].revision


def upgrade_to(steps: Sequence[MigrationStep], url: str, **how: Any) -> int | None:
    """Upgrade a store and return its previous revision. how: see `upgrade_database`."""
    database = Database(url)
    try:
        return upgrade_database(database, steps=steps, **how)
    finally:
        database.close()


def program(tree: Path, steps: Sequence[MigrationStep]) -> Path:
    """Write this program with other steps to a folder and return it, for PYTHONPATH.

    Unchanged files keep their modification times, so their compiled kernels stay valid.
    """
    shutil.copytree(ROOT / "xcray", tree / "xcray")
    text = (ROOT / MIGRATIONS).read_text()
    before, _, rest = text.partition("STEPS: Final[tuple[MigrationStep, ...]] = ")
    _, _, after = rest.partition("\nHEAD: ")
    (tree / MIGRATIONS).write_text(f"{before}STEPS = {tuple(steps)!r}\nHEAD: {after}")
    return tree


def run_next(tree: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a program that `program` wrote."""
    paths = os.pathsep.join((str(tree), str(ROOT)))
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment, "PYTHONPATH": paths},
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=600,
    )
