"""One tree of errors. No HTTP codes here: the service maps classes to statuses.

XcrayError
+-- InputError              the caller can mend it
|   +-- DataError           a row, header or file that can't be read: file, line, column, value
|   +-- ShapeMismatch       two things that should have the same size
|   +-- ParameterError      a hyper-parameter or option out of its range
|   +-- NotCalibrated       probabilities are asked of a model that has only scores
+-- NotFound                no such data set, job, model, label
+-- Conflict                the thing exists already, or its state forbids this
+-- Fenced                  a newer attempt owns this job; the writer must stop
+-- Corrupt                 bytes on disk are not what was written
+-- Refused                 it can't fit: memory, disk, limits
+-- Stopped                 stopped on request; finished work is kept
+-- Unavailable             something needed is not there now (Ray, an extra): try later or install it
"""

from __future__ import annotations

from typing import Any

EXTRAS = {  # top-level module -> the extra that brings it (see pyproject.toml)
    **dict.fromkeys(("scipy", "sklearn"), "sklearn"),
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
            *("alembic", "sqlalchemy", "starlette", "uvicorn", "uvloop"),
        ),
        "serve",
    ),
    "httpx": "client",
    "matplotlib": "plots",
    "psycopg": "postgres",
    "ray": "ray",
}
EXCERPT = 80  # characters of foreign input an error may repeat
SENTENCE = 600  # characters of a sentence that may name several pieces of it


class XcrayError(Exception):
    """The root. `code` is for machines, the message names the mend, `hint` says more, `details` is JSON-ready."""

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
        """Errors travel between processes, whatever their constructors ask for."""
        return _again, (type(self), self.args, self.__dict__)

    def as_dict(self) -> dict[str, Any]:
        """Code, message, hint and details, without empty entries."""
        out = {"code": self.code, "message": self.message, "hint": self.hint, **self.details}
        return {name: value for name, value in out.items() if value is not None}


class InputError(XcrayError):
    """Something the caller gave is wrong and can be mended."""

    code = "INPUT"


class ShapeMismatch(InputError):
    """Two sizes that should agree do not."""

    code = "SHAPE_MISMATCH"


class ParameterError(InputError):
    """A parameter is unknown or out of its range."""

    code = "PARAMETER"


class NotCalibrated(InputError):
    """The model has scores, no probabilities."""

    code = "NOT_CALIBRATED"


class DataError(InputError):
    """A place in a data file that can't be read: where (line and column from 1, or row from 0 where there are no lines), what was
    found, what was expected."""

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
        place = ":".join(str(part) for part in (file, line, column) if part is not None)
        shown = None if value is None else excerpt(value)
        problem = excerpt(problem, SENTENCE)
        words = problem if row is None else f"row {row}: {problem}"
        message = f"{place}: {words}" if place else words
        super().__init__(
            message, code=code, hint=hint, file=file, line=line, column=column, row=row, value=shown
        )
        self.problem = problem
        self.file = file
        self.line = line
        self.column = column
        self.row = row
        self.value = shown


class NotFound(XcrayError):
    """No such thing."""

    code = "NOT_FOUND"


class Conflict(XcrayError):
    """It exists already, or its state forbids this."""

    code = "CONFLICT"


class Fenced(XcrayError):
    """A newer attempt owns this job; this writer must stop."""

    code = "FENCED"


class Corrupt(XcrayError):
    """Bytes on disk are not the bytes that were written."""

    code = "CORRUPT"


class Refused(XcrayError):
    """It can't be done within the limits; the figures are in the message."""

    code = "REFUSED"


class Stopped(XcrayError):
    """Stopped on request; finished work is kept."""

    code = "STOPPED"


class Unavailable(XcrayError):
    """Something needed is not there now."""

    code = "UNAVAILABLE"


def lacking(error: ModuleNotFoundError) -> Exception:
    """Unavailable with the command that installs what an import lacks; the error itself when it is not of an extra of xcray."""
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return error
    extra = EXTRAS[module]
    return Unavailable(
        f"this needs {module}, which is not installed: pip install 'xcray[{extra}]'",
        code="NOT_INSTALLED",
    )


def lacking_ray(error: ModuleNotFoundError) -> Unavailable:
    """Unavailable for work that is to run on Ray where Ray, or what it needs, is not installed; it names both ways out."""
    return Unavailable(
        f"pool=ray needs Ray ({error.name} is missing): pip install 'xcray[ray]', or use pool=threads"
    )


def excerpt(text: str, most: int = EXCERPT) -> str:
    """At most `most` characters of foreign text, control and non-printing characters escaped."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text[: most + 1]
    )
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _again(kind: type[XcrayError], args: tuple[Any, ...], state: dict[str, Any]) -> XcrayError:
    """An error as it was in another process."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
