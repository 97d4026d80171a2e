"""Solvers of other installed packages: their entry points of the group `xcray.solvers`.

[project.entry-points."xcray.solvers"]
my-solver = "my_package.solver:MySolver"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from xcray.errors import ParameterError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "xcray.solvers"


@cache
def installed_solvers() -> Mapping[str, EntryPoint]:
    """Return the entry points by name; of several with one name the first on the path."""
    from importlib.metadata import entry_points  # 0.1 s: needed for names that are not built in

    found: dict[str, EntryPoint] = {}
    for each in entry_points(group=GROUP):
        found.setdefault(each.name, each)
    return found


def load_solver(entry: EntryPoint) -> type[Any]:
    """Import the class of an entry point.

    Raises ParameterError with the package's name if it cannot be imported, or is not a solver.
    """
    package = entry.dist.name if entry.dist else entry.value
    try:
        cls = entry.load()
    except Exception as error:  # whatever the package's code raises
        problem = f"{type(error).__name__}: {error}"
    else:
        if isinstance(cls, type) and is_dataclass(cls) and hasattr(cls, "family"):
            return cls
        problem = f"{entry.value} is not a dataclass that subclasses the protocol of a family"
    raise ParameterError(
        f"solver {entry.name} of the package {package} can't be loaded: {problem}",
        code="SOLVER_BROKEN",
        hint=f"correct or uninstall {package}",
    )
