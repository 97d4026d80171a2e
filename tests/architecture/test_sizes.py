"""Sizes of functions and files of the package, with those that are larger by name."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.source import PACKAGE, SOURCES, parse

MAX_FUNCTION = 60  # lines, without decorators
MAX_FILE = 400
MAX_KERNEL_FILE = 600
# These lists only shrink: what is within the limits is removed from them.
LONG_FILES = {
    "cli/training/data.py",
    "data/readers/parquet.py",
    "estimators/linear.py",
    "jobs/store/attempts.py",
    "kernels/search/bounded_scan.py",
    "kernels/search/bounded_scan_wide.py",
    "kernels/training/pdsparse.py",
    "solvers/indexed_bcd/label.py",
    "solvers/lc/solver.py",
    "solvers/newton.py",
    "solvers/pdsparse.py",
    "solvers/ppdsparse.py",
    "training/edit/apply.py",
}
LONG_FUNCTIONS = {
    "cli/models/evaluate.py:evaluate",
    "cli/service/keys.py:create",
    "cli/service/serve.py:serve",
    "cli/training/train.py:train",
    "jobs/runner/main.py:main",
    "kernels/search/bounded_scan_wide.py:scan_all",
    "service/app.py:_build_app",
}


def max_lines(path: Path) -> int:
    """Return the limit of a file; kernels are one computation, which is read as a whole."""
    return MAX_KERNEL_FILE if PACKAGE / "kernels" in path.parents else MAX_FILE


def long_functions(tree: ast.Module) -> list[str]:
    """Return the functions and methods with more than MAX_FUNCTION lines."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION
    ]


def test_files_are_short() -> None:
    sizes = {path: path.read_bytes().count(b"\n") for path in SOURCES}
    large = {
        path.relative_to(PACKAGE).as_posix()
        for path, size in sizes.items()
        if size > max_lines(path)
    }
    assert large - LONG_FILES == set(), "split these files, by subject"
    assert LONG_FILES - large == set(), "remove these files from LONG_FILES"


def test_functions_are_short() -> None:
    large = {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}"
        for path in SOURCES
        for name in long_functions(parse(path))
    }
    assert large - LONG_FUNCTIONS == set(), "split these functions"
    assert LONG_FUNCTIONS - large == set(), "remove these functions from LONG_FUNCTIONS"


def test_a_function_is_long_from_its_sixty_first_line() -> None:
    def made(lines: int) -> str:
        return "def work():\n" + "    x = 1\n" * (lines - 1)

    assert long_functions(ast.parse(made(60))) == []
    assert long_functions(ast.parse(made(61))) == ["work"]
