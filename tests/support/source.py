"""The source of the project as parsed files, for the architecture tests."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "xcray"
SOURCES = sorted(PACKAGE.rglob("*.py"))


class Import(NamedTuple):
    """One import of an xcray module.

    line: line number. module: the named module. name: the imported name, None for `import x`.
    inside: whether it is inside a function. typing: whether it is under `if TYPE_CHECKING`.
    """

    line: int
    module: str
    name: str | None
    inside: bool
    typing: bool


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file.

    Without collection of garbage, which would visit the many new objects several times.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    finally:
        if collects:
            gc.enable()


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Return all modules of the package by name."""
    return {module_of(path): path for path in SOURCES}


def dotted(node: ast.AST) -> str:
    """Return `np.load` for the expression np.load, and "" if it is not a dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def constant(node: ast.AST | None) -> object:
    """Return the value of a constant expression, None for others."""
    return node.value if isinstance(node, ast.Constant) else None


def xcray_imports(tree: ast.AST, inside: bool = False, typing: bool = False) -> Iterator[Import]:
    """Yield every import of xcray in a tree, also those in functions and for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "xcray":
                    yield Import(node.lineno, alias.name, None, inside, typing)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if node.level or module.split(".")[0] == "xcray":
                for alias in node.names:
                    yield Import(node.lineno, module, alias.name, inside, typing)
        late = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING")
        yield from xcray_imports(node, late, typing or guarded)


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Return the imports of xcray in a file."""
    return tuple(xcray_imports(parse(path)))


def imported_module(statement: Import, known: set[str]) -> str:
    """Return the module that an import reaches; `from module import member` reaches the module."""
    full = f"{statement.module}.{statement.name}"
    return full if full in known else statement.module


def offences(check: Callable[[Path], list[str]], paths: list[Path]) -> list[str]:
    """Return the offences that `check` finds in the files, each with the path of its file."""
    return [f"{path.relative_to(ROOT)}: {each}" for path in paths for each in check(path)]


def kernel_decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Return the numba decorators of a function."""
    names = [(d, dotted(d.func if isinstance(d, ast.Call) else d)) for d in function.decorator_list]
    return [d for d, name in names if name.split(".")[-1] in {"njit", "jit", "inner"}]
