"""The next releases of this program: the same, with more steps for the store. As a program: `rolling.py FOLDER xcray's words`.

`release(folder, step, ...)` makes the folder; `Steps` of it can also be handed to `bring_up`.
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
    """A step that nobody has written: what its function does, and what it says of itself."""

    body: str
    says: str = ""


def release(folder: Path, *steps: NextStep) -> Path:
    """The steps there are and those, numbered on, as a folder for `Steps` and for this file as a program."""
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
    """The revision of a release."""
    return max(path.name[1:5] for path in (folder / "versions").glob("v*.py"))


def main() -> int:
    """Be the release."""
    folder = Path(sys.argv[1])
    schema.HEAD = newest(folder)  # type: ignore[misc]  # before anybody reads it
    from xcray.cli.main import main as xcray
    from xcray.jobs.database import upgrade

    upgrade.OURS = upgrade.Steps(folder, schema.HEAD)  # type: ignore[misc]
    return xcray(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
