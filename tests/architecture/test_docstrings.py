"""Docstrings are part of the public face: each public thing has one, and what it names exists.

A name in backticks must be a parameter, a member, or a name of the module or of xcray; a line
`name: text` in the docstring of a function must be one of its parameters, in that of a class one of
its members.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "xcray").rglob("*.py"))
TICKED = re.compile(r"(?<!`)`([a-z_](?:[a-z0-9_]*[a-z0-9])?)`(?!`)")  # not `job_`: a prefix
DESCRIBED = re.compile(r"^\s*([a-z_][a-z0-9_]*(?:, [a-z_][a-z0-9_]*)*): \S")
FOREIGN = {"extra"}  # parameters of the standard library that docstrings speak of: logging's extra
WORDS = {
    "default",
    "example",
    "examples",
    "note",
    "raises",
    "reference",
    "returns",
    "units",
}  # may begin a line with a colon

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Thing(NamedTuple):
    """A documented thing: its dotted name in the file, its node, and the class around it."""

    name: str
    node: Defined
    owner: ast.ClassDef | None


def public(tree: ast.Module | ast.ClassDef, owner: ast.ClassDef | None = None) -> Iterator[Thing]:
    """Public functions, classes and methods of a file; not what is defined inside functions."""
    for node in tree.body:
        if isinstance(node, Defined) and not node.name.startswith("_"):
            yield Thing(f"{owner.name}.{node.name}" if owner else node.name, node, owner)
            if isinstance(node, ast.ClassDef):
                yield from public(node, node)


def parameters(node: Defined) -> set[str]:
    """The parameters of a function; none for a class."""
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


def members(node: ast.ClassDef | None) -> set[str]:
    """Fields, methods and attributes of a class, with the parameters of its constructor."""
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
    """Whether members may come from a base class."""
    return any(
        ast.unparse(base) not in {"NamedTuple", "Protocol", "ABC", "Generic", "Exception"}
        for base in node.bases
    )


def module_names(tree: ast.Module) -> set[str]:
    """Names that a file defines or imports at its top."""
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


def house_names() -> set[str]:
    """Public names of the whole house: modules, functions, classes, methods, fields."""
    out = (
        {path.stem for path in SOURCES}
        | {path.parent.name for path in SOURCES}
        | set(dir(builtins))
    )
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for thing in public(tree):
            out.add(thing.node.name)
            if isinstance(thing.node, ast.ClassDef):
                out |= members(thing.node)
    return out


HOUSE = house_names()


def missing(tree: ast.Module) -> list[str]:
    """Public things without a docstring."""
    bare = [thing for thing in public(tree) if not ast.get_docstring(thing.node)]
    return [f"line {thing.node.lineno}: {thing.name} has no docstring" for thing in bare]


def unknown_names(tree: ast.Module, house: set[str] = HOUSE) -> list[str]:
    """Names in backticks that exist nowhere near."""
    near = module_names(tree) | strings(tree) | house | FOREIGN
    out = []
    for thing in public(tree):
        known = near | parameters(thing.node) | members(thing.owner)
        known |= members(thing.node) if isinstance(thing.node, ast.ClassDef) else set()
        gone = [
            name
            for name in TICKED.findall(ast.get_docstring(thing.node) or "")
            if name not in known
        ]
        out += [
            f"line {thing.node.lineno}: {thing.name} speaks of `{name}`, which does not exist"
            for name in gone
        ]
    return out


def strings(node: ast.AST) -> set[str]:
    """Strings in the code that look like names: keys and codes it may speak of."""
    constants = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    return {value for value in constants if isinstance(value, str) and value.isidentifier()}


def undescribed(tree: ast.Module) -> list[str]:
    """Lines `name: text` about parameters or members that are not there."""
    out = []
    for thing in public(tree):
        if isinstance(thing.node, ast.ClassDef) and inherits(thing.node):
            continue
        known = WORDS | (
            members(thing.node)
            if isinstance(thing.node, ast.ClassDef)
            else parameters(thing.node) | returned(thing)
        )
        for line in (ast.get_docstring(thing.node) or "").splitlines()[1:]:
            if found := DESCRIBED.match(line):
                gone = [name for name in found[1].split(", ") if name not in known]
                out += [
                    f"line {thing.node.lineno}: {thing.name} describes {name!r}, which it does not have"
                    for name in gone
                ]
    return out


def returned(thing: Thing) -> set[str]:
    """Names a function returns, or sets: `alpha, w` of `return alpha, w`."""
    steps = [
        node.value
        for node in ast.walk(thing.node)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return {n.id for value in steps for n in ast.walk(value) if isinstance(n, ast.Name)} | strings(
        thing.node
    )


LAWS = (missing, unknown_names, undescribed)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_docstrings_match_the_code(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [offence for law in LAWS for offence in law(tree)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


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
    assert [offence for law in (missing, undescribed) for offence in law(tree)] == []
    assert unknown_names(tree, set()) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"""Add `by` to `size`."""', "return None", "Spec.grow has no docstring"),
        ('"""A spec.\n\n    size: rows\n    """', "", "Spec has no docstring"),
        ("epochs=3", "max_epochs=3", "fit speaks of `epochs`"),
        ("LIMIT = 3", "LOWER = 3", None),  # capitals are constants of anywhere, not parameters
        ("grow(self, by)", "grow(self, rows)", "Spec.grow speaks of `by`"),
        ("    size: int", "    height: int", "Spec describes 'size'"),
        ("epochs: passes", "passes: passes", "fit describes 'passes'"),
    ],
)
def test_each_law_can_fail(old: str, new: str, expected: str | None) -> None:
    changed = ast.parse(GOOD.replace(old, new))
    offences = [*missing(changed), *unknown_names(changed, set()), *undescribed(changed)]
    assert any(expected in offence for offence in offences) if expected else offences == []
