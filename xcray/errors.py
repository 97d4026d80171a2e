"""The exception hierarchy. The service maps these classes to HTTP status codes.

XcrayError
+-- InputError              the caller can fix the input
|   +-- DataError           a row, header or file that cannot be read: file, line, column, value
|   +-- ShapeMismatch       two arrays that should have the same size
|   +-- ParameterError      a hyper-parameter or option out of its range
|   +-- NotCalibrated       probabilities requested from a model that only has scores
+-- NotFound                the data set, job, model or label does not exist
+-- Conflict                it already exists, or its state does not allow the operation
+-- Fenced                  a newer attempt owns this job; the writer must stop
+-- Corrupt                 bytes on disk are not what was written
+-- Refused                 it does not fit: memory, disk, limits
+-- Stopped                 stopped on request; finished work is kept
+-- Unavailable             a requirement is missing (Ray, an extra): retry later or install it
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# top-level module -> the extra that installs it (see pyproject.toml)
EXTRAS = {
    **dict.fromkeys(("scipy", "sklearn"), "sklearn"),
    "nmslib": "memoir",
    "Stemmer": "text",
    "py3langid": "text",
    "rdflib": "skos",
    **dict.fromkeys(
        (
            *(
                "fastapi",
                "httptools",
                "msgspec",
                "prometheus_client",
                "pydantic",
                "pydantic_settings",
            ),
            *("sqlalchemy", "starlette", "uvicorn", "uvloop"),
        ),
        "serve",
    ),
    "httpx": "client",
    "psycopg": "postgres",
    "ray": "ray",
}
# maximum number of characters of foreign input that an error repeats
MAX_EXCERPT = 80
# maximum number of characters of a sentence that can quote several pieces of input
MAX_SENTENCE = 600
# maximum number of names that are compared with an unknown one (about 0.1 s)
MAX_COMPARED = 20_000
# maximum number of names that an error lists
MAX_LISTED_NAMES = 20


class XcrayError(Exception):
    """Base class of all errors of xcray.

    code: machine-readable; the message names the fix; hint: more help; details: JSON-ready.
    """

    code = "ERROR"

    def __init__(
        self, message: str, *, code: str | None = None, hint: str | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.hint = hint
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling of errors, whatever arguments their constructors need."""
        return _restore, (type(self), self.args, self.__dict__)

    def as_dict(self) -> dict[str, Any]:
        """Return code, message, hint and details, without empty entries."""
        out = {"code": self.code, "message": self.message, "hint": self.hint, **self.details}
        return {name: value for name, value in out.items() if value is not None}


class InputError(XcrayError):
    """The input is wrong and the caller can fix it."""

    code = "INPUT"


class ShapeMismatch(InputError):
    """Two sizes that should be equal differ."""

    code = "SHAPE_MISMATCH"


class ParameterError(InputError):
    """A parameter is unknown or out of range."""

    code = "PARAMETER"


class NotCalibrated(InputError):
    """The model has scores but no probabilities."""

    code = "NOT_CALIBRATED"


class DataError(InputError):
    """A location in a data file that cannot be read.

    line, column: from 1; row: from 0, for formats without lines; value: the text at that location.
    """

    code = "DATA"

    def __init__(
        self,
        code: str,
        problem: str,
        *,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        value: str | None = None,
        hint: str | None = None,
        row: int | None = None,
    ) -> None:
        position = ":".join(str(part) for part in (file, line, column) if part is not None)
        quoted = None if value is None else excerpt(value)
        problem = excerpt(problem, MAX_SENTENCE)
        text = problem if row is None else f"row {row}: {problem}"
        message = f"{position}: {text}" if position else text
        super().__init__(
            message,
            code=code,
            hint=hint,
            file=file,
            line=line,
            column=column,
            row=row,
            value=quoted,
        )
        self.problem = problem
        self.file = file
        self.line = line
        self.column = column
        self.row = row
        self.value = quoted


class NotFound(XcrayError):
    """It does not exist."""

    code = "NOT_FOUND"


class Conflict(XcrayError):
    """It already exists, or its state does not allow the operation."""

    code = "CONFLICT"


class Fenced(XcrayError):
    """A newer attempt owns this job. This writer must stop."""

    code = "FENCED"


class Corrupt(XcrayError):
    """The bytes on disk are not the bytes that were written."""

    code = "CORRUPT"


class Refused(XcrayError):
    """It exceeds a limit. The message contains the numbers."""

    code = "REFUSED"


class Stopped(XcrayError):
    """Stopped on request. Finished work is kept."""

    code = "STOPPED"


class Unavailable(XcrayError):
    """A requirement is not available now."""

    code = "UNAVAILABLE"


def missing_extra(error: ModuleNotFoundError) -> Exception:
    """Return Unavailable with the command that installs the missing module.

    Returns the error itself if the module does not belong to an extra of xcray.
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return error
    extra = EXTRAS[module]
    return Unavailable(
        f"this needs {module}, which is not installed: pip install 'xcray[{extra}]'",
        code="NOT_INSTALLED",
    )


def missing_ray(error: ModuleNotFoundError) -> Unavailable:
    """Return Unavailable for work on Ray where Ray, or one of its dependencies, is missing."""
    return Unavailable(
        f"pool=ray needs Ray ({error.name} is missing): pip install 'xcray[ray]', "
        "or use pool=threads"
    )


def is_disk_full(error: BaseException) -> bool:
    """Return whether the disk, or the quota of the user on it, was full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def missing_file(path: Path) -> NotFound:
    """Return the error of a path that is not a file."""
    if path.is_dir():
        return NotFound(f"{path.name} is a directory, not a file")
    return NotFound(f"there is no file {path.name}")


def excerpt(text: str, max_chars: int = MAX_EXCERPT) -> str:
    """Return at most `max_chars` characters of foreign text, with non-printable ones escaped."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text[: max_chars + 1]
    )
    return shown if len(shown) <= max_chars else shown[: max_chars - 3] + "..."


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the most similar of the known names, or "".

    The case and surrounding spaces do not matter. Of more than MAX_COMPARED names, only names that
    differ in case or spaces are found.
    """
    by_key = {each.casefold().strip(): each for each in known}
    key = name[:MAX_EXCERPT].casefold().strip()
    near = by_key.get(key)
    if near is None and len(by_key) <= MAX_COMPARED:
        near = next((by_key[each] for each in difflib.get_close_matches(key, by_key, 1)), None)
    return "" if near is None else f"; did you mean {excerpt(near)!r}?"


def similar_or_all(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?", or "; there are: a, b" (at most 20) if no name is similar."""
    names = list(known)
    listed = ", ".join(excerpt(each) for each in names[:MAX_LISTED_NAMES]) or "none"
    more = ", ..." if len(names) > MAX_LISTED_NAMES else ""
    return suggestion(name, names) or f"; there are: {listed}{more}"


def _restore(kind: type[XcrayError], args: tuple[Any, ...], state: dict[str, Any]) -> XcrayError:
    """Rebuild an error that was pickled in another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
