"""Values for shell completion (`xcray --install-completion`): models, data sets, solvers.

Only directories are listed, so that completion answers fast: no server is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MANIFEST = "manifest.json"
MAX_VALUES = 200


def complete_models(incomplete: str) -> list[str]:
    """Return model directories, and names of the models in the home of a local service."""
    from xcray.system.user_directories import default_home

    models = default_home() / "models"
    names = [path.parent.name for path in models.glob("*/versions")]
    return [*directories(incomplete, "weights.arrow"), *_starting(names, incomplete)]


def complete_datasets(incomplete: str) -> list[str]:
    """Return data set directories."""
    return directories(incomplete, "train/x_rows.arrow")


def complete_solvers(incomplete: str) -> list[str]:
    """Return names of solvers."""
    from xcray.solvers import SOLVERS

    return _starting(list(SOLVERS), incomplete)


def directories(incomplete: str, file: str) -> list[str]:
    """Return the directories that begin with a path and hold a manifest and `file`.

    Other directories are returned with a final slash, because they can contain some.
    """
    folder, _, start = incomplete.rpartition("/")
    prefix = incomplete[: len(incomplete) - len(start)]
    place = Path(folder or ("/" if prefix else "."))
    out = []
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        if path.name.startswith(start) and (start or path.name[0] != ".") and path.is_dir():
            if (path / MANIFEST).is_file() and (path / file).is_file():
                out.append(f"{prefix}{path.name}")
            elif not (path / MANIFEST).is_file():
                out.append(f"{prefix}{path.name}/")
    return out[:MAX_VALUES]


def _starting(names: list[str], incomplete: str) -> list[str]:
    """Return the names with this beginning, sorted."""
    return sorted(name for name in names if name.startswith(incomplete))[:MAX_VALUES]


DatasetArgument = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Data set directory.", autocompletion=complete_datasets),
]
