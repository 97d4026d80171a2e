"""Solvers: one module per solver, a frozen dataclass of parameters with the solver's methods.

A new solver is one file with a class, and one line in BUILT_IN, or an entry point of the group
`xcray.solvers` in another package (or a call of `register_solver`). Modules are imported on first
use, so that only the kernels of that solver are compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

from xcray.errors import ParameterError, excerpt, suggestion
from xcray.parameters import parameter_table as declared_table
from xcray.solvers.installed import installed_solvers, load_solver
from xcray.solvers.parameters import make_parameters

if TYPE_CHECKING:
    from xcray.solvers.contract import IndependentSolver
    from xcray.solvers.group_contract import GroupSolver

# a solver of any family; compare `family` to narrow it
AnySolver: TypeAlias = Union["IndependentSolver", "GroupSolver"]

BUILT_IN: Final = {
    "ppdsparse": "xcray.solvers.ppdsparse:PPDSparseSolver",
    "dismec": "xcray.solvers.presets:DiSMECSolver",
    "l2svm": "xcray.solvers.presets:L2SVMSolver",
    "pdsparse": "xcray.solvers.pdsparse:PDSparseSolver",
    "crammer-singer": "xcray.solvers.presets:CrammerSingerSolver",
    "memoir": "xcray.solvers.memoir.solver:MemoirSolver",
    "dsmlr": "xcray.solvers.dsmlr.solver:DSMLRSolver",
    "lbfgs": "xcray.solvers.lbfgs.solver:LBFGSSolver",
    "least-squares": "xcray.solvers.least_squares.solver:LeastSquaresSolver",
    "generalized-least-squares": (
        "xcray.solvers.least_squares.solver:GeneralizedLeastSquaresSolver"
    ),
    "calibrated-least-squares": (
        "xcray.solvers.least_squares.staged_solvers:CalibratedLeastSquaresSolver"
    ),
    "stagewise": "xcray.solvers.least_squares.staged_solvers:StagewiseSolver",
    "indexed-bcd": "xcray.solvers.indexed_bcd.solver:IndexedBCDSolver",
    # baselines
    "ppdsparse-paper": "xcray.solvers.presets:PPDSparsePaperSolver",
    "memoir-paper": "xcray.solvers.presets:MemoirPaperSolver",
    "memoir-paper-frozen": "xcray.solvers.presets:MemoirPaperFrozenSolver",
    "memoir-scripts": "xcray.solvers.presets:MemoirScriptsSolver",
    "lc": "xcray.solvers.lc.solver:LCSolver",
    "block-minimisation": "xcray.solvers.indexed_bcd.baselines:BlockMinimisationSolver",
    "selective-block-minimisation": (
        "xcray.solvers.indexed_bcd.baselines:SelectiveBlockMinimisationSolver"
    ),
    "pegasos": "xcray.solvers.indexed_bcd.baselines:PegasosSolver",
}


class _SolverTable(Mapping[str, type[Any]]):
    """Solver classes by name: built in, registered, then those of other packages.

    Packages are searched when a name is not built in, and when all names are listed.
    """

    def __init__(self, classes: Mapping[str, str]) -> None:
        self._classes: dict[str, str | type[Any]] = dict(classes)

    def __getitem__(self, name: str) -> type[Any]:
        """Return a class; its module is imported on first use.

        Raises KeyError, ParameterError if that of another package cannot be loaded.
        """
        if name not in self._classes:
            self._classes[name] = load_solver(installed_solvers()[name])
        cls = self._classes[name]
        if isinstance(cls, str):
            module, _, attribute = cls.partition(":")
            cls = self._classes[name] = getattr(import_module(module), attribute)
        return cls

    def __contains__(self, name: object) -> bool:
        return name in self._classes or name in installed_solvers()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._classes, *installed_solvers()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def add(self, name: str, cls: type[Any]) -> None:
        """Add a class. Raises ParameterError if another one has the name."""
        if self._classes.setdefault(name, cls) is not cls:
            raise ParameterError(f"there is a solver {name!r} already: choose another name")


_REGISTRY: Final = _SolverTable(BUILT_IN)
SOLVERS: Final[Mapping[str, type[Any]]] = _REGISTRY


def register_solver(name: str, cls: type[AnySolver]) -> None:
    """Make a solver available by name, in this process.

    cls: a frozen dataclass that subclasses the protocol of its family; importable by workers in
    other processes. Raises ParameterError if another class has the name.
    """
    _REGISTRY.add(name, cls)


def find_solver(name: str) -> type[Any] | None:
    """Return the class of a solver; None if it is unknown here or cannot be loaded."""
    try:
        return SOLVERS.get(name)
    except ParameterError:
        return None


def loaded_solvers() -> tuple[dict[str, type[Any]], list[ParameterError]]:
    """Return the classes of all solvers by name, and the errors of those that cannot be loaded."""
    classes, errors = {}, []
    for name in SOLVERS:
        try:
            classes[name] = SOLVERS[name]
        except ParameterError as error:
            errors.append(error)
    return classes, errors


def solver_class(name: str) -> type[Any]:
    """Return the class of the solver `name`. Raises ParameterError if there is none."""
    if name not in SOLVERS:
        raise ParameterError(
            f"unknown solver {excerpt(str(name))!r}{suggestion(str(name), SOLVERS)}; "
            f"there are: {', '.join(SOLVERS)}",
            code="UNKNOWN_SOLVER",
        )
    return SOLVERS[name]


def make_solver(name: str, values: Mapping[str, Any]) -> AnySolver:
    """Return the solver `name` with the parameters `values`.

    Raises ParameterError for an unknown solver, an unknown parameter or an invalid value.
    """
    solver: AnySolver = make_parameters(solver_class(name), values)
    return solver


def parameter_table(name: str) -> list[dict[str, Any]]:
    """Return the parameters of the solver `name`: name, type, default, help, range.

    Raises ParameterError for an unknown solver.
    """
    return declared_table(solver_class(name))


def describe_solver(name: str) -> dict[str, Any]:
    """Return name, help, family, baseline and "parameters" (`parameter_table`), JSON-ready.

    Raises ParameterError for an unknown solver.
    """
    cls = solver_class(name)
    help = (cls.__doc__ or "").partition("\n\n")[0]
    return {
        "name": name,
        "help": " ".join(help.split()),
        "family": cls.family,
        "baseline": cls.baseline,
        "parameters": parameter_table(name),
    }
