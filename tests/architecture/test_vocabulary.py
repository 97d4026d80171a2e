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
# Earlier names of files, routes, metrics and fields, with what replaced them.
EARLIER_NAMES = {
    **dict.fromkeys(
        ("rests/", "rest.json", "note.json", "rest-000"), "checkpoints, checkpoint.json"
    ),
    **dict.fromkeys(("descent.json", "ended.json"), "outcome.json"),
    **dict.fromkeys(("descent.svg", "pictures/descent"), "objective"),
    **dict.fromkeys(("class_table", "classes.arrow", "classes_certified", "ID/classes"), "labels"),
    **dict.fromkeys(("swap_timeout", "SWAP_TIMEOUT", "model_swaps", "test_swap"), "switch"),
    "classes_solved": "labels_solved",
    "vitals": "metrics",
    "ID/figures": "histograms",
    "N/figures": "report",
}
# Words that no name of the package contains. Metrics are of operations, measures of accuracy, a
# report is the JSON of a training; labels are of the task, a class is a class of Python.
EARLIER_WORDS = {"figures", "facts", "vitals", "rests", "descents", "team", "standing", "swaps"}
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


def earlier_names(text: str) -> list[str]:
    """Return the earlier names that a text contains."""
    return [name for name in EARLIER_NAMES if name in text]


def earlier_words(tree: ast.Module) -> list[str]:
    """Return names with an earlier word between their underscores."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name, line = node.name, node.lineno
        elif isinstance(node, ast.arg):
            name, line = node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, line = node.id, node.lineno
        else:
            continue
        if EARLIER_WORDS & set(name.lower().split("_")):
            out.append(f"line {line}: {name}")
    return out


def test_no_banned_word_is_used() -> None:
    texts = [path for path in TEXTS if path not in ALLOWED]
    words = {path: banned_words(path.read_text(encoding="utf-8")) for path in texts}
    assert {str(path.relative_to(ROOT)): each for path, each in words.items() if each} == {}


def test_no_earlier_name_is_used() -> None:
    names = {
        str(path.relative_to(ROOT)): earlier_names(path.read_text(encoding="utf-8"))
        for path in TEXTS
        if path not in ALLOWED
    }
    assert {path: found for path, found in names.items() if found} == {}


def test_no_name_of_the_package_has_an_earlier_word() -> None:
    # Parse only what contains one of the words.
    words = re.compile(rf"(?:\b|_)(?:{'|'.join(EARLIER_WORDS)})(?:\b|_)", re.IGNORECASE)
    paths = [path for path in SOURCES if words.search(path.read_text(encoding="utf-8"))]
    names = {str(path.relative_to(ROOT)): earlier_words(parse(path)) for path in paths}
    assert {path: lines for path, lines in names.items() if lines} == {}


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


def test_an_earlier_word_is_found() -> None:
    tree = ast.parse("def run_facts(team):\n    figures = 1\nclass Standing:\n    pass\nfactor = 2")
    assert len(earlier_words(tree)) == 4


@pytest.mark.parametrize(
    "text", ["rests/rest-000012/rest.json", "GET /v1/jobs/ID/classes", "XCRAY_SWAP_TIMEOUT_SECONDS"]
)
def test_an_earlier_name_is_found(text: str) -> None:
    assert earlier_names(text)


@pytest.mark.parametrize("text", ["the rest of a REST call", "rest-frame", "storageClassName"])
def test_names_of_others_are_accepted(text: str) -> None:
    assert not earlier_names(text)
