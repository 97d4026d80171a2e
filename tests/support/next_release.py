"""Simulated next releases of this program, with more migration steps.

`release` writes only the steps, for `MigrationScripts`. `program` writes the whole program, which
`run_next` runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from xcray.jobs.database.engine import Database
from xcray.jobs.database.schema import HEAD
from xcray.jobs.database.upgrade import OWN_SCRIPTS, MigrationScripts, upgrade_database

ROOT = Path(__file__).parents[2]
DATABASE = Path("xcray/jobs/database")
FILE = '''"""A step of the next release."""

import sqlalchemy as sa
from alembic import op
from xcray.jobs.database.migrations import online

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None
{says}


def upgrade():
    {body}
'''


class NextStep(NamedTuple):
    """An unpublished step: the body of its function, and its declarations."""

    body: str
    says: str = ""


# steps that only add
ADDED = (
    NextStep(
        'op.add_column("jobs", sa.Column("colour", sa.Text))\n'
        'op.add_column("jobs", sa.Column("tries", sa.Integer, nullable=False, server_default="0"))\n'
        'op.add_column("keys", sa.Column("tries", sa.Integer, nullable=False, server_default="0"))\n'
        'op.create_table("places", sa.Column("id", sa.Text, primary_key=True))',
        f'oldest = "{HEAD}"',
    ),
    NextStep(
        'online.create_index("jobs_colour", "jobs", ["colour"])',
        f'oldest = "{HEAD}"\nin_transaction = False',
    ),
)


def release(folder: Path, *steps: NextStep) -> Path:
    """Write the existing steps and the new ones, numbered, to a folder and return it."""
    versions = folder / "versions"
    shutil.copytree(
        OWN_SCRIPTS.folder / "versions", versions, ignore=shutil.ignore_patterns("__pycache__")
    )
    numbers = [f"{int(HEAD) + n:04}" for n in range(len(steps) + 1)]
    for before, revision, step in zip(numbers, numbers[1:], steps, strict=False):
        text = FILE.format(
            revision=revision, before=before, says=step.says, body=step.body.replace("\n", "\n    ")
        )
        (versions / f"v{revision}_next.py").write_text(text)
    return folder


def newest(folder: Path) -> str:
    """Return the newest revision of a release."""
    return max(path.name[1:5] for path in (folder / "versions").glob("v*.py"))


def upgrade_to(folder: Path, url: str, **how: Any) -> str | None:
    """Upgrade a store and return its previous revision. how: see `upgrade_database`."""
    database = Database(url)
    try:
        return upgrade_database(database, scripts=MigrationScripts(folder, newest(folder)), **how)
    finally:
        database.close()


def program(tree: Path, *steps: NextStep) -> Path:
    """Write this program with new steps to a folder and return it, for PYTHONPATH.

    Unchanged files keep their modification times, so their compiled kernels stay valid.
    """
    shutil.copytree(ROOT / "xcray", tree / "xcray")
    shutil.rmtree(tree / DATABASE / "migrations" / "versions")
    head = newest(release(tree / DATABASE / "migrations", *steps))
    schema = tree / DATABASE / "schema.py"
    schema.write_text(schema.read_text().replace(f'HEAD: Final = "{HEAD}"', f'HEAD = "{head}"'))
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
