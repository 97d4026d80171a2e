"""Words of the old private vocabulary are not used again (see docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.support.source import PACKAGE, ROOT, SOURCES, parse

# Each banned word with its replacement.
BANNED = {
    r"told|(?<!\.)tells?": "report, return, show",
    r"mend(?:s|ed|ing)?": "fix",
    r"whoever|whomever": "the caller, the client, the user",
    r"oftener": "more often",
    r"anew|afresh": "again",
    r"for ever": "forever, without limit",
    r"beside": "next to, together with",
    r"nobody|somebody": "no process, no user; a user, a client",
    r"strangers?": "an unauthenticated client, an unknown process",
    r"so many|so-many\w*": "`count` of them, every n-th",
    r"(?:go|goes|going|went) round": "rotate, visit",
    r"errands?|muster|the house|keeps house": "the term of the glossary",
    r"(?<!there )is no (?!longer\b|more\b)[a-z]+|(?<!there )(?-i:is none)": "is not a valid ..., is missing",
}
# Stored keys, quoted values and command-line options keep their words.
PATTERN = re.compile(r"(?<![\"-])\b(?:" + "|".join(BANNED) + r")\b", re.IGNORECASE)
# A past participle is not the name of a thing; result, rows and snapshot are.
PARTICIPLES = {"told", "asked", "heard", "wanted", "given", "taken", "kept", "seen"}
ALLOWED = {
    # This file contains the patterns.
    ROOT / "tests" / "architecture" / "test_vocabulary.py",
}
TEXTS = sorted(
    path
    for folder, patterns in (
        (".", ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")),
        ("xcray", ("**/*.py", "**/*.html", "**/*.js")),
        ("docs", ("**/*.md", "**/*.py")),
        ("examples", ("*.py",)),
        ("helm", ("**/*.md", "**/*.yaml", "**/*.tpl", "**/*.txt")),
        ("deploy", ("**/*.md", "**/*.py", "**/*.yaml")),
        (".ci", ("*",)),
        ("tests", ("**/*.py",)),
        ("benchmarks", ("**/*.py",)),
    )
    for pattern in patterns
    for path in (ROOT / folder).glob(pattern)
    if path.is_file() and not {"__pycache__", "vendor"} & set(path.parts)
)


def banned_words(text: str) -> list[str]:
    """Return the banned words of a text, with their lines."""
    return [
        f"line {number}: {match[0]!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for match in PATTERN.finditer(line)
    ]


def participles(tree: ast.Module) -> list[str]:
    """Return definitions and parameters that have a past participle as name."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.strip("_").lower() in PARTICIPLES:
                out.append(f"line {node.lineno}: {node.name}")
        elif isinstance(node, ast.arg) and node.arg in PARTICIPLES:
            out.append(f"line {node.lineno}: parameter {node.arg}")
    return out


def test_no_banned_word_is_used() -> None:
    texts = [path for path in TEXTS if path not in ALLOWED]
    words = {path: banned_words(path.read_text(encoding="utf-8")) for path in texts}
    assert {str(path.relative_to(ROOT)): each for path, each in words.items() if each} == {}


def test_no_definition_is_named_by_a_participle() -> None:
    files = {*SOURCES, *(path for path in TEXTS if path.suffix == ".py")} - ALLOWED
    # Parse only what can define one of the words.
    words = re.compile(
        rf"(?:(?:def|class|lambda)\s+|[(,*]\s*|^\s+)_*(?:{'|'.join(PARTICIPLES)})_*\s*[:(,=)]",
        re.IGNORECASE | re.MULTILINE,
    )
    paths = {path for path in files if words.search(path.read_text(encoding="utf-8"))}
    names = {str(path.relative_to(ROOT)): participles(parse(path)) for path in paths}
    assert {path: lines for path, lines in names.items() if lines} == {}


def test_class_names_are_unique() -> None:
    names = Counter(
        name
        for path in SOURCES
        for name in re.findall(r"^class _*(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_every_module_is_in_one_package_of_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}/`" not in page} == set()


def test_glossary_entries_are_one_sentence_with_a_link_to_a_page() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)[1:]
    assert len(rows) >= 40
    assert [term for term, _ in rows] == sorted((term for term, _ in rows), key=str.lower)
    for term, meaning in rows:
        links = re.findall(r"\]\(([a-z-]+\.md)\)", meaning)
        assert links, term
        assert all((ROOT / "docs" / link).is_file() for link in links), term
        assert meaning.endswith("."), term


# Tests of the checks: each must find a banned word, and accept good text.


@pytest.mark.parametrize(
    "text",
    [
        "what it tells comes to the driver",
        "the mend for each",
        "asks anew",
        "this is no port",
        "each so-many-th row",
        "blocks go round",
        "the file is none",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert len(banned_words(f"fine\n{text}")) == 1


@pytest.mark.parametrize("text", ["there is no model named x", "recommend a fix", "go around"])
def test_good_text_is_accepted(text: str) -> None:
    assert banned_words(text) == []


def test_a_participle_is_found() -> None:
    tree = ast.parse("def told(kept):\n    pass\nclass _Asked:\n    pass\ndef keep(row):\n    pass")
    assert len(participles(tree)) == 3
