"""Next releases of this program, with more migration steps.

As a program: `next_release.py FOLDER ARGUMENTS-OF-XCRAY`. `release(folder, step, ...)` creates the
folder, which also fits `MigrationScripts` for `upgrade_database`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from xcray.jobs.database import schema

STEPS = Path(__file__).parents[2] / "xcray" / "jobs" / "database" / "migrations" / "versions"
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


def release(folder: Path, *steps: NextStep) -> Path:
    """Write the existing steps and the new ones, numbered, to a folder and return it."""
    versions = folder / "versions"
    shutil.copytree(STEPS, versions, ignore=shutil.ignore_patterns("__pycache__"))
    numbers = [f"{int(schema.HEAD) + n:04}" for n in range(len(steps) + 1)]
    for before, revision, step in zip(numbers, numbers[1:], steps, strict=False):
        text = FILE.format(
            revision=revision, before=before, says=step.says, body=step.body.replace("\n", "\n    ")
        )
        (versions / f"v{revision}_next.py").write_text(text)
    return folder


def newest(folder: Path) -> str:
    """Return the newest revision of a release."""
    return max(path.name[1:5] for path in (folder / "versions").glob("v*.py"))


def main() -> int:
    """Run as the release."""
    folder = Path(sys.argv[1])
    schema.HEAD = newest(folder)  # type: ignore[misc]  # before any other module reads it
    from xcray.cli.main import main as xcray
    from xcray.jobs.database import upgrade

    upgrade.OWN_SCRIPTS = upgrade.MigrationScripts(folder, schema.HEAD)  # type: ignore[misc]
    return xcray(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
