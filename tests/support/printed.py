"""Find references in documentation to things that do not exist.

The checks cover commands with arguments, variables, HTTP calls, chart values, paths and modules.
`tests/architecture/test_printed.py` applies them to every page.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from xcray.cli.main import commands_for

ROOT: Final = Path(__file__).parents[2]
COMMANDS: Final = commands_for([])
PLACES: Final = (
    "*.md",
    "benchmarks/*.md",
    "docs/*.md",
    "docs/decisions/*.md",
    "docs/tutorials/*.md",
    "deploy/**/*.md",
    "deploy/**/*.yaml",
    "deploy/*/Dockerfile",
    "helm/xcray/*.md",
    "helm/xcray/values.yaml",
    "helm/xcray/ci/*.yaml",
    "helm/xcray/monitoring/rules.yaml",
    "helm/xcray/templates/**/*.yaml",
    "helm/xcray/templates/**/*.tpl",
    "helm/xcray/templates/NOTES.txt",
)
# The end of the part of a line that xcray parses.
NOT_A_COMMAND: Final = re.compile(r"\s#|(?<!\S)[|&>;](?!\S)|&&|(?<!');|…|\s\.\.\.$")
CALL: Final = re.compile(r"\b(GET|PUT|POST|DELETE|HEAD)`?\s+`?(/[^\s`)\"|,;]*)")


@functools.cache
def pages() -> dict[str, str]:
    """Return every page by its path: Markdown, NOTES, and YAML with its comments."""
    results = sorted({path for place in PLACES for path in ROOT.glob(place)})
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in results}


@functools.cache
def sources(*folders: str) -> dict[str, str]:
    """Return the text of every Python file below the folders, by path."""
    results = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in results}


# commands of xcray


def lines(text: str) -> list[str]:
    """Return the commands of xcray in the indented and fenced blocks of a page.

    If one line runs several programs, each xcray command is returned.
    """
    text = text.replace("\\\n", " ")  # join continued lines
    blocks = [
        line.strip()
        for line in text.splitlines()
        if line.startswith(("    ", "xcray ", "  xcray "))
    ]
    # a separator in quotes, as in --label-separator ';', does not end a command
    ends = r"&&|(?<!')(?:;|\|)"
    parts = [part.strip() for line in blocks for part in re.split(ends, line.split(" # ")[0])]
    # Text that ends with a period is a sentence, not a command.
    return [
        part
        for part in parts
        if re.match(r"([A-Z_]+=\S+ )*xcray [a-z-]+ ?", part) and not part.endswith(".")
    ]


def quoted(text: str) -> list[str]:
    """Return the commands that a page quotes in backticks, some without all arguments."""
    return [" ".join(each.split()) for each in re.findall(r"`(xcray [a-z-][^`]*)`", text)]


def faults(command: str, whole: bool = False) -> list[str]:
    """Return the faults of a command line: commands, options and arguments that do not exist.

    whole: also report missing arguments.
    """
    words = words_of(command)
    at: Any = COMMANDS
    while hasattr(at, "commands"):
        names = [word for word in words if not word.startswith("-")]
        if not names:
            return []
        many = names[0].split("|") if "|" in names[0] else [names[0]]  # labels add|remove|merge
        if unknown := [name for name in many if name not in at.commands]:
            return [f"{command}: there is no {', '.join(unknown)}"]
        at, words = at.commands[many[0]], words[words.index(names[0]) + 1 :]
    return [f"{command}: {fault}" for fault in faults_of(at, words, whole)]


def words_of(command: str) -> list[str]:
    """Return the words after `xcray`, up to another program, a comment or an ellipsis."""
    line = re.sub(r"^([A-Z_]+=\S+ )+", "", NOT_A_COMMAND.split(command)[0])
    return [word for word in shlex.split(line, posix=True)[1:] if word not in ("...", "[...]")]


def faults_of(command: Any, words: list[str], whole: bool) -> list[str]:
    """Return the errors of the command's own parser for the words."""
    if {"--help", "-h"} & set(words):
        return []
    try:
        inputs, left, _ = command.make_parser(command.context_class(command)).parse_args(
            list(words)
        )
    except Exception as error:
        if not hasattr(error, "format_message"):  # usage errors of any click version
            raise
        # An option without its value, such as `--limit` in a sentence.
        bare = words[-1].startswith("-") and "requires an argument" in error.format_message()
        return [] if bare and not whole else [error.format_message()]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    lacks = [
        each.name
        for each in arguments
        if whole and each.required and inputs[each.name] in (None, ())
    ]
    return [f"{each!r} is too much" for each in left] + [f"{name} is missing" for name in lacks]


# HTTP


def calls(text: str) -> list[tuple[str, str]]:
    """Return the calls that a page names, without the query: ("GET", "/v1/jobs/ID")."""
    return [
        (method, path.split("?")[0].rstrip(".:").rstrip("/") or "/")
        for method, path in CALL.findall(text)
    ]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield (method, pattern of its paths) for each operation of an OpenAPI document."""
    for path, methods in document["paths"].items():
        pattern = re.compile(re.sub(r"\\\{.*?\\\}", "[^/]+?", re.escape(path)))
        yield from ((method.upper(), pattern) for method in methods)


# values of the chart


@functools.cache
def schema() -> dict[str, Any]:
    """Return the chart's values.schema.json."""
    out: dict[str, Any] = json.loads((ROOT / "helm/xcray/values.schema.json").read_text())
    return out


def is_value(path: str) -> bool:
    """Return whether the chart has a value such as `ray.autoscaling.enabled`."""
    at = schema()
    for name in path.split("."):
        at = resolved(at)
        if name in at.get("properties", {}):
            at = at["properties"][name]
        elif isinstance(at.get("additionalProperties"), dict):
            at = at["additionalProperties"]
        else:  # the schema does not list the values below
            return (
                at.get("additionalProperties") is not False and at.get("type", "object") == "object"
            )
    return True


def resolved(at: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, or the schema that it refers to."""
    while "$ref" in at:
        result = schema()
        for name in at["$ref"].removeprefix("#/").split("/"):
            result = result[name]
        at = result
    return at


def values_in(text: str, plain: bool = False) -> list[str]:
    """Return the paths of values that a page names in backticks or sets in a helm command.

    plain: also return those in running text, for comments, NOTES and error messages of the chart.
    """
    # `tests.deployment.image` is a module, not a value.
    known = "|".join(each for each in schema()["properties"] if each != "tests")
    sets = re.findall(r"--set(?:-file|-string|-json)?[ =](\S+)", text)
    code = [text] if plain else [*re.findall(r"`([^`\n]+)`", text), *sets]
    path = re.compile(rf"(?<![\w./$-])((?:{known})(?:\.[A-Za-z]\w*)+)(?![\w/(-])")
    results = [each for part in code for each in path.findall(part)]
    return [
        each
        for each in results
        if each.rpartition(".")[2] not in ("md", "yaml", "py", "json", "png", "tpl", "coreos")
    ]
