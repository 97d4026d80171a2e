"""Import layers, read from the source: imports run downward only, in and between packages."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

import pytest

from tests.support.source import (
    PACKAGE,
    ROOT,
    SOURCES,
    Import,
    imported_module,
    imports_of,
    module_of,
    modules,
    offences,
    xcray_imports,
)

# Highest first. A package imports only from lower layers and from itself.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("xcray", "__main__"),
    ("cli",),
    ("service", "client"),
    ("jobs",),
    ("batch", "estimators"),
    ("training",),
    ("workers",),
    ("solvers", "predict"),
    ("model",),
    ("index",),
    ("features",),
    ("data",),
    ("certificate", "kernels", "measures", "plots", "schedule"),
    ("storage", "api"),
    ("parameters",),
    ("system", "telemetry"),
    ("arrays",),
    ("errors",),
)
# The client uses HTTP and imports nothing else of the package than these.
ONLY = {"client": {"api", "arrays", "errors", "parameters", "storage"}}
# These can import packages inside functions, so that `import xcray` and `xcray --help` start fast.
LAZY_PACKAGES = {"xcray", "__main__", "cli"}
# Only the Ray workers of training and batch prediction need Ray.
LAZY_IMPORTS = {("training", "workers"), ("batch", "workers")}
# What other packages can import of `solvers`; estimators are one solver each.
SOLVER_MODULES = {
    "xcray.solvers",
    *(
        f"xcray.solvers.{name}"
        for name in (
            "contract",
            "declarations",
            "group_contract",
            "held_out",
            "parameters",
            "row_shards",
            "shard_contract",
            "solved_labels",
        )
    ),
}
LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
MAX_FLAT_MODULES = 20
HEAVY = ("ray", "fastapi", "uvicorn", "sklearn", "matplotlib", "scipy", "numba")


def package_of(module: str) -> str:
    """Return the top-level package of a module: `data` for xcray.data.text, `xcray` for xcray."""
    return module.split(".")[1] if "." in module else module


def target_of(statement: Import) -> str:
    """Return the module that an import reaches: `from xcray import plots` reaches xcray.plots."""
    if statement.module == "xcray" and statement.name in LAYER_OF:
        return f"xcray.{statement.name}"
    return statement.module


def offence_of(package: str, statement: Import) -> str | None:
    """Return why `package` must not contain this import, or None if it is allowed."""
    if statement.module.startswith("."):
        return "relative import; write it in full"
    if statement.module == "xcray" and statement.name == "__version__":
        return None
    target = package_of(target_of(statement))
    if target not in LAYER_OF:
        return f"{target} has no layer; add it to LAYERS"
    lazy = package in LAZY_PACKAGES or (package, target) in LAZY_IMPORTS
    if statement.inside and not lazy:
        return f"imports {target} inside a function; only {sorted(LAZY_PACKAGES)} may"
    if target == package:
        return None
    if target not in ONLY.get(package, {target}):
        return f"{package} may import only {sorted(ONLY[package])}, not {target}"
    if LAYER_OF[target] > LAYER_OF[package]:
        return None
    return f"{package} imports {target}, which is not below it"


def solver_offence(package: str, statement: Import) -> str | None:
    """Return why `package` must not import this module of a solver, or None if it is allowed."""
    module = statement.module
    if package in {"solvers", "estimators"} or module.split(".")[:2] != ["xcray", "solvers"]:
        return None
    if module in SOLVER_MODULES and (
        f"{module}.{statement.name}" not in modules().keys() - SOLVER_MODULES
    ):
        return None
    return f"{package} imports {module}, which is a single solver"


def upward_imports(imports: Iterable[Import], package: str) -> list[str]:
    """Return the imports of a file that do not run downward, or that name a single solver."""
    return [
        f"line {statement.line}: {reason}"
        for statement in imports
        if (reason := offence_of(package, statement) or solver_offence(package, statement))
    ]


@cache
def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports, also for type checkers."""
    known = set(modules())
    return {
        name: {imported_module(statement, known) for statement in imports_of(path)}
        - {name, "xcray"}
        for name, path in modules().items()
        if name != "xcray"
    }


def units_of(package: str, graph: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the import graph of the sub-packages and modules directly in a package."""
    depth = package.count(".") + 1
    edges: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        if name.startswith(f"{package}."):
            unit = name.split(".")[depth]
            inside = (target for target in targets if target.startswith(f"{package}."))
            edges[unit] |= {target.split(".")[depth] for target in inside} - {unit}
    return {unit: sorted(targets) for unit, targets in edges.items()}


def cycle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the nodes of one cycle, or an empty list."""
    finished: set[str] = set()

    def walk(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in finished:
            return []
        for target in graph.get(name, []):
            if cycle := walk(target, [*trail, name]):
                return cycle
        finished.add(name)
        return []

    return next((cycle for name in graph if (cycle := walk(name, []))), [])


def loaded_after(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after running `code`."""
    listing = "print(*(m for m in sys.modules if '.' not in m or m.startswith('xcray.')))"
    command = [sys.executable, "-c", f"import sys\n{code}\n{listing}"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return set(process.stdout.split())


PACKAGES = sorted({name for name, path in modules().items() if path.name == "__init__.py"})


def test_imports_run_downward_only() -> None:
    assert not offences(
        lambda path: upward_imports(imports_of(path), package_of(module_of(path))), SOURCES
    )


def test_two_modules_outside_solvers_ask_for_the_family() -> None:
    """What differs between solvers is declared by them."""
    asking = [
        module_of(path)
        for path in SOURCES
        if "solver.family" in path.read_text("utf-8")
        and package_of(module_of(path)) not in {"solvers", "tests", "benchmarks"}
    ]
    assert sorted(asking) == ["xcray.training.edit.apply", "xcray.training.strategies"]


def test_every_package_has_a_layer() -> None:
    names = {path.stem for path in PACKAGE.glob("*.py")}
    names |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert names - {"__init__"} == set(LAYER_OF) - {"xcray"}


def test_no_modules_import_each_other() -> None:
    graph = {name: sorted(targets) for name, targets in import_graph().items()}
    assert cycle_in(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_parts_of_a_package_do_not_import_each_other(package: str) -> None:
    if package != "xcray":  # its parts are the layers
        assert cycle_in(units_of(package, import_graph())) == []


def test_packages_are_small() -> None:
    counts = {
        str(folder.relative_to(ROOT)): len([p for p in folder.glob("*.py") if p.stem[:2] != "__"])
        for folder in {path.parent for path in SOURCES}
    }
    assert {folder: n for folder, n in counts.items() if n > MAX_FLAT_MODULES} == {}


def test_importing_xcray_loads_no_heavy_library() -> None:
    assert not loaded_after("import xcray") & set(HEAVY)


def test_predicting_needs_neither_ray_nor_solvers() -> None:
    loaded = loaded_after("import xcray\nxcray.Predictor\nxcray.Model")
    packages = ("solvers", "workers", "training", "estimators", "jobs", "service")
    assert "xcray.predict" in loaded
    assert not loaded & {"ray", "fastapi", "sklearn", *(f"xcray.{name}" for name in packages)}


def test_every_public_name_can_be_loaded() -> None:
    code = "import xcray\nassert None not in [getattr(xcray, n) for n in xcray.__all__]"
    assert "ray" not in loaded_after(code)


# Tests of the checks: each must find the offence in a snippet, and accept good code.


@pytest.mark.parametrize(
    ("package", "snippet", "expected"),
    [
        ("data", "from xcray.model.model import Model", "not below"),
        ("solvers", "import xcray.predict", "not below"),
        ("kernels", "from xcray.data.text import X", "not below"),
        ("storage", "from xcray import measures", "not below"),
        ("training", "from xcray import Dataset", "not below"),
        (
            "model",
            "if TYPE_CHECKING:\n    from xcray.jobs.store.job_store import Store",
            "not below",
        ),
        ("service", "def f():\n    from xcray.cli import main", "inside a function"),
        ("jobs", "def f():\n    from xcray.solvers import SOLVERS", "inside a function"),
        ("client", "from xcray.jobs.job import Job", "may import only"),
        ("jobs", "from .store import Store", "relative"),
        ("jobs", "import xcray.attic", "no layer"),
        ("workers", "from xcray.solvers.dsmlr import DSMLRSolver", "a single solver"),
        ("training", "from xcray.solvers import ppdsparse", "a single solver"),
        ("cli", "def f():\n    from xcray.solvers.memoir.solver import x", "a single solver"),
        ("jobs", "if TYPE_CHECKING:\n    from xcray.solvers.lbfgs import x", "a single solver"),
    ],
)
def test_an_upward_import_is_found(package: str, snippet: str, expected: str) -> None:
    result = upward_imports(xcray_imports(ast.parse(snippet)), package)
    assert [expected in offence for offence in result] == [True]


@pytest.mark.parametrize(
    ("package", "snippet"),
    [
        ("data", "from xcray.kernels.sparse import transpose"),
        ("cli", "def f():\n    from xcray.training import train"),
        ("jobs", "from xcray.jobs.store.job_store import Store\nfrom xcray import __version__"),
        ("model", "from xcray import plots, errors\nimport numpy"),
        ("workers", "from xcray.solvers.contract import Solver\nfrom xcray.solvers import SOLVERS"),
        ("estimators", "from xcray.solvers.ppdsparse import PPDSparseSolver"),
    ],
)
def test_a_downward_import_is_accepted(package: str, snippet: str) -> None:
    assert upward_imports(xcray_imports(ast.parse(snippet)), package) == []


def test_cycles_are_found() -> None:
    assert cycle_in({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert cycle_in({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_a_cycle_between_sub_packages_is_found() -> None:
    graph = {"x.a.one": ["x.b.one"], "x.b.two": ["x.a.two"], "x.b.one": [], "x.a.two": []}
    assert cycle_in(graph) == []
    assert cycle_in(units_of("x", graph)) == ["a", "b", "a"]
