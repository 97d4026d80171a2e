"""Open a model directory for a command: checksums are compared once per file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xcray.model.model import Model


def open_model(path: str | Path) -> Model:
    """Map a model directory whose checksums and structure are verified.

    The checksums are remembered in `verified.json` of the home (XCRAY_HOME, else ~/.xcray), so that
    the next command does not hash the same files again. Raises NotFound, Corrupt.
    """
    from xcray.model.model import Model
    from xcray.storage.verified import VERIFIED_FILE, VerifiedFiles
    from xcray.system.user_directories import default_home

    return Model.open(path, VerifiedFiles(default_home() / VERIFIED_FILE))
