"""Every public object has a docstring, and every name in a docstring exists.

A name in backticks must be a parameter, a member, or a name of the module or of xcray. In the
docstring of a function, each line `name: text` must describe a parameter; in that of a class, a
member.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.source import SOURCES, offences, parse

TICKED = re.compile(r"(?<!`)`([a-z_](?:[a-z0-9_]*[a-z0-9])?)`(?!`)")  # not the prefix `job_`
DESCRIBED = re.compile(r"^\s*([a-z_][a-z0-9_]*(?:, [a-z_][a-z0-9_]*)*): \S")
FOREIGN = {"extra"}  # parameters of the standard library that docstrings mention
# Words that can come before a colon without being a parameter.
WORDS = {
    "default",
    "example",
    "examples",
    "note",
    "raises",
    "reference",
    "returns",
    "units",
}

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class DocumentedObject(NamedTuple):
    """A documented object: its dotted name in the file, its node, and the enclosing class."""

    name: str
    node: Defined
    owner: ast.ClassDef | None


def public(
    tree: ast.Module | ast.ClassDef, owner: ast.ClassDef | None = None
) -> Iterator[DocumentedObject]:
    """Yield the public functions, classes and methods of a file, except those inside functions."""
    for node in tree.body:
        if isinstance(node, Defined) and not node.name.startswith("_"):
            yield DocumentedObject(f"{owner.name}.{node.name}" if owner else node.name, node, owner)
            if isinstance(node, ast.ClassDef):
                yield from public(node, node)


def parameters(node: Defined) -> set[str]:
    """Return the parameters of a function; an empty set for a class."""
    if isinstance(node, ast.ClassDef):
        return set()
    a = node.args
    named = [
        *a.posonlyargs,
        *a.args,
        *a.kwonlyargs,
        *(extra for extra in (a.vararg, a.kwarg) if extra),
    ]
    return {argument.arg for argument in named}


@functools.cache
def members(node: ast.ClassDef | None) -> set[str]:
    """Return fields, methods and attributes of a class, with the parameters of its constructor."""
    if node is None:
        return set()
    out = {
        n.target.id
        for n in ast.walk(node)
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    out |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    out |= {
        t.id
        for n in node.body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    for method in (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
        out |= {method.name} | (
            parameters(method) if method.name in {"__init__", "__new__"} else set()
        )
    return out


def inherits(node: ast.ClassDef) -> bool:
    """Return whether members can come from a base class."""
    return any(
        ast.unparse(base) not in {"NamedTuple", "Protocol", "ABC", "Generic", "Exception"}
        for base in node.bases
    )


def module_names(tree: ast.Module) -> set[str]:
    """Return the names that a file imports or defines at module level."""
    out: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            out |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    for node in tree.body:
        if isinstance(node, Defined):
            out.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            out |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return out


def package_names(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the public names of the package: modules, functions, classes, methods, fields."""
    out = {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}
    out |= set(dir(builtins))
    for tree in trees:
        for thing in public(tree):
            out.add(thing.node.name)
            if isinstance(thing.node, ast.ClassDef):
                out |= members(thing.node)
    return frozenset(out)


def missing(tree: ast.Module) -> list[str]:
    """Return the public objects without a docstring."""
    bare = [thing for thing in public(tree) if not ast.get_docstring(thing.node)]
    return [f"line {thing.node.lineno}: {thing.name} has no docstring" for thing in bare]


def unknown_names(tree: ast.Module, package: Collection[str]) -> list[str]:
    """Return the names in backticks that do not exist."""
    near: set[str] = set()
    out = []
    for thing in public(tree):
        names = TICKED.findall(ast.get_docstring(thing.node) or "")
        if not (names := [name for name in names if name not in package]):
            continue
        near = near or module_names(tree) | strings(tree) | FOREIGN
        known = near | parameters(thing.node) | members(thing.owner)
        known |= members(thing.node) if isinstance(thing.node, ast.ClassDef) else set()
        gone = [name for name in names if name not in known]
        out += [
            f"line {thing.node.lineno}: {thing.name} mentions `{name}`, which does not exist"
            for name in gone
        ]
    return out


def strings(node: ast.AST) -> set[str]:
    """Return the strings in the code that are identifiers, such as keys and codes."""
    constants = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    return {value for value in constants if isinstance(value, str) and value.isidentifier()}


def undescribed(tree: ast.Module) -> list[str]:
    """Return the lines `name: text` whose name is not a parameter or member."""
    out = []
    for thing in public(tree):
        lines = (ast.get_docstring(thing.node) or "").splitlines()[1:]
        results = [result for line in lines if (result := DESCRIBED.match(line))]
        if not results or (isinstance(thing.node, ast.ClassDef) and inherits(thing.node)):
            continue
        known = WORDS | (
            members(thing.node)
            if isinstance(thing.node, ast.ClassDef)
            else parameters(thing.node) | returned(thing)
        )
        for result in results:
            gone = [name for name in result[1].split(", ") if name not in known]
            out += [
                f"line {thing.node.lineno}: {thing.name} describes {name!r}, which it does not have"
                for name in gone
            ]
    return out


def returned(thing: DocumentedObject) -> set[str]:
    """Return the names in return statements (`alpha, w` of `return alpha, w`) and the strings."""
    steps = [
        node.value
        for node in ast.walk(thing.node)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return {n.id for value in steps for n in ast.walk(value) if isinstance(n, ast.Name)} | strings(
        thing.node
    )


def test_docstrings_match_the_code() -> None:
    trees = {path: parse(path) for path in SOURCES}
    package = package_names(trees.values())

    def check(path: Path) -> list[str]:
        tree = trees[path]
        header = [] if ast.get_docstring(tree) else ["the file has no docstring"]
        unknown = unknown_names(tree, package)
        return [*header, *missing(tree), *unknown, *undescribed(tree)]

    assert offences(check, SOURCES) == []


GOOD = '''
LIMIT = 3

def fit(X, *, epochs=3):
    """Fit `X` for at most `epochs`, and `LIMIT`.

    epochs: passes over the data
    """
    return None

class Spec:
    """A spec.

    size: rows
    """
    size: int
    def grow(self, by):
        """Add `by` to `size`."""
'''


def test_a_good_file_passes() -> None:
    tree = ast.parse(GOOD)
    assert [offence for check in (missing, undescribed) for offence in check(tree)] == []
    assert unknown_names(tree, set()) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"""Add `by` to `size`."""', "return None", "Spec.grow has no docstring"),
        ('"""A spec.\n\n    size: rows\n    """', "", "Spec has no docstring"),
        ("epochs=3", "max_epochs=3", "fit mentions `epochs`"),
        ("LIMIT = 3", "LOWER = 3", None),  # capitals are constants of any module, not parameters
        ("grow(self, by)", "grow(self, rows)", "Spec.grow mentions `by`"),
        ("    size: int", "    height: int", "Spec describes 'size'"),
        ("epochs: passes", "passes: passes", "fit describes 'passes'"),
    ],
)
def test_each_check_can_fail(old: str, new: str, expected: str | None) -> None:
    changed = ast.parse(GOOD.replace(old, new))
    faults = [*missing(changed), *unknown_names(changed, set()), *undescribed(changed)]
    assert any(expected in fault for fault in faults) if expected else faults == []
