"""The page of all error codes, collected from the code that raises them.

Messages have the form "cause: cure". A value that is filled in at run time is shown as `…`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import xcray
from xcray import errors
from xcray.data.readers.error_codes import GROUPS
from xcray.errors import XcrayError
from xcray.service.http import problems

PACKAGE: Final = Path(xcray.__file__).parent
# Codes that are not a constant where the error is raised.
OTHERS: Final = {
    "BELOW_BASELINE": "a warning, the model is far below the mean of each label's rows: see its report",
    "BUILD_DIED": "the process that built the data set ended: send less data, or give it more memory",
    "CRASH_LOOP": "each attempt of the job ended its runner: give it more memory or fewer workers",
    "EMPTY_ROWS": "a warning, some instances have no known feature: send a text with known words",
    "INTERNAL": "an error of xcray: report it with the request id",
    "MEMORY_LIMIT": "a data set does not fit in the memory of its build: send less data",
    "NOT_CONVERGED": "a warning, labels ended without a certificate: raise the limit of rounds",
    "SCHEMA_NEWER": "the store is of a newer version: run that one, or restore the backup",
    "SCHEMA_OLDER": "the store is of an older version: run `xcray store upgrade`",
}
# What to do if the message and its hint do not say it, by class.
CURES: Final = {
    errors.NotCalibrated: "calibrate it: `xcray calibrate MODEL DIR --out NEW`",
    errors.NotFound: "check the name",
    errors.Conflict: "read the present state, then decide again",
    errors.Corrupt: "restore the files from a backup",
    errors.Refused: "ask for less, or raise the limit",
    errors.Stopped: "run it again to continue",
    errors.Unavailable: "try again later; the log of the service has the reason",
    XcrayError: "correct the input; `loc` or the message names the place",
}
PLACE: Final = re.compile(r"^(?:…(?:, line …)?|query): ")  # of the error
MIN_LETTERS: Final = 9  # shorter causes consist of what is filled in
SHOWN: Final = 2  # messages of a code


class Raised(NamedTuple):
    """One place where a code is raised."""

    code: str
    cause: str
    cure: str
    kind: type[XcrayError]


def page() -> str:
    """Return the page: codes of requests, commands and jobs, then those of data files."""
    rows: dict[str, list[Raised]] = {}
    for each in raised():
        rows.setdefault(each.code, []).append(each)
    lines = ["| code | HTTP | what it is | what to do |", "|---|---|---|---|"]
    for code, places in sorted(rows.items()):
        kind = places[0].kind
        cause = _joined(places, 1, (kind.__doc__ or "").split("\n")[0].rstrip("."))
        cure = _joined(places, 2, next(CURES[each] for each in kind.__mro__ if each in CURES))
        lines.append(f"| `{code}` | {_status(places)} | {cause} | {cure} |")
    return (
        "# Error codes\n\nEvery error has a `code`: in problem documents of the service, in the "
        "output of `--json`, and as `error.code` in Python. The message of the error is more exact "
        "than this page, and names the values that are `…` here.\n\n## Requests, commands and "
        "jobs\n\n" + "\n".join(lines) + "\n\n## Data files\n\n" + data_tables()
    )


def data_tables() -> str:
    """Return the tables of the codes of data files."""
    parts = []
    for group, codes in GROUPS.items():
        rows = [
            f"| `{code}` | {_cell(each.meaning)} | {_cell(each.fix)} |"
            for code, each in codes.items()
        ]
        parts.append("\n".join([f"| {group} | what it is | what to do |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def raised() -> Iterator[Raised]:
    """Yield every error of the package with a constant code that is not one of a data file."""
    data = {code for group in GROUPS.values() for code in group}
    found = [*_from_source(), *_from_tables()]
    for each in found:
        if each.code not in data and each.code.isupper():
            yield each


def _from_source() -> Iterator[Raised]:
    """Yield calls with `code=`, calls of DataError, and classes with a `code`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not ("code=" in text or "code = " in text or "DataError(" in text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _from_function(node)
            elif isinstance(node, ast.ClassDef):
                yield from _from_class(node)


def _from_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Raised]:
    """Yield the errors of a function; a message in a variable is its last assigned text."""
    nodes = list(ast.walk(function))
    texts = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        kind = _error_class(ast.unparse(node.func).split(".")[-1])
        named = {each.arg: each.value for each in node.keywords}
        arguments = list(node.args)
        if kind is errors.DataError and len(arguments) > 1:
            named["code"] = arguments.pop(0)
        code = named.get("code")
        if not arguments or not isinstance(code, ast.Constant) or not isinstance(code.value, str):
            continue
        message, hint = (
            texts.get(each.id, each) if isinstance(each, ast.Name) else each
            for each in (arguments[0], named.get("hint", ast.Constant("")))
        )
        yield _raised(code.value, _text(message), _text(hint), kind)


def _from_class(node: ast.ClassDef) -> Iterator[Raised]:
    """Yield the code of a class of errors, with its docstring."""
    for each in node.body:
        if not isinstance(each, ast.Assign) or ast.unparse(each.targets[0]) != "code":
            continue
        if isinstance(each.value, ast.Constant) and each.value.value:
            kind = _error_class(node.name, *map(ast.unparse, node.bases))
            doc = (ast.get_docstring(node) or "").split("\n")[0].rstrip(".")
            yield _raised(each.value.value, doc, "", kind)


def _from_tables() -> Iterator[Raised]:
    """Yield the codes of the validation of requests, of statuses, and those of `OTHERS`."""
    for code, text in problems.VALIDATION_RULES.values():
        yield _raised(code, text.replace("{", "`").replace("}", "`"), "", errors.InputError)
    for number, code in problems.CODE_OF_STATUS.items():
        text = problems.DETAIL_OF_STATUS.get(number, "the request could not be read")
        yield _raised(code, text, "see the paths and bodies at `/docs`", errors.InputError)
    for code, text in OTHERS.items():
        yield _raised(code, text, "", XcrayError)


def _raised(code: str, message: str, hint: str, kind: type[XcrayError]) -> Raised:
    """Split "cause: cure"; without a cure it is the hint, else that of the class."""
    message = PLACE.sub("", message)
    cause, _, cure = message.partition(": " if ": " in message else "; ")
    if sum(map(str.isalpha, cause)) < MIN_LETTERS:
        cause = ""
    return Raised(code, cause, cure if sum(map(str.isalpha, cure)) > 5 else hint, kind)


def _text(message: ast.expr) -> str:
    """Return the text of a message, with `…` for what is filled in."""
    if isinstance(message, ast.JoinedStr):
        return "".join(map(_text, message.values))
    if isinstance(message, ast.BinOp):
        return _text(message.left) + _text(message.right)
    return str(message.value) if isinstance(message, ast.Constant) else "…"


def _error_class(*names: str) -> type[XcrayError]:
    """Return the first class of `xcray.errors` with one of the names, else XcrayError."""
    found = (getattr(errors, name.split(".")[-1], None) for name in names)
    return next((each for each in found if isinstance(each, type)), XcrayError)


def _status(places: list[Raised]) -> int | str:
    """Return the HTTP status of a code, or `-` for codes that no reply of the service has."""
    code, kind = places[0].code, places[0].kind
    numbers = {each: number for number, each in problems.CODE_OF_STATUS.items()}
    if code not in problems.STATUS_OF_CODE and (code in numbers or kind is XcrayError):
        return numbers.get(code, "-")
    return problems.status_of(
        errors.InputError("", code=code) if kind is errors.DataError else kind("", code=code)
    )


def _joined(places: list[Raised], field: int, missing: str) -> str:
    """Return the first different texts of a code, else what stands for a missing one."""
    texts = list(dict.fromkeys(str(each[field]) for each in places if each[field]))
    return _cell("; or ".join(texts[:SHOWN])) or missing


def _cell(text: str) -> str:
    """Return a text that can stand in a table."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
