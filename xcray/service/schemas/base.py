"""Base classes and field types of request and reply schemas.

Requests are strict: no unknown fields, no strings for numbers, no NaN.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from xcray.storage.atomic import check_name

MAX_INDEX = 2**31 - 2
FLOAT32_MAX = 3.4028234663852886e38
MAX_TEXT_CHARS = 1_000_000  # characters
MAX_SECONDS = 366 * 86400.0
MAX_MILLISECONDS = 600_000.0
MAX_LABEL_CHARS = 10_000  # characters per label name
MAX_FILTER_LABELS = 100_000  # labels per allow or deny list

# What `check_name` accepts: no name that a file system reserves, no "..", and no final ".".
_NAME: Final = (
    r"(?!(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$|[:@]))[a-z0-9]([a-z0-9_-]|\.(?=[a-z0-9_-])){0,63}"
)
NAME_PATTERN: Final = f"^{_NAME}$"
ALIAS_PATTERN: Final = f"^(?!latest$){_NAME}$"
REFERENCE_PATTERN: Final = f"^{_NAME}(:[0-9]{{1,9}}|@{_NAME})?$"
MAX_VERSION: Final = 999_999_999
ID_PATTERN: Final = "^[a-z]{1,8}_[a-z0-9]{1,40}$"
SHA256_PATTERN: Final = "^[0-9a-f]{64}$"

Name = Annotated[
    str,
    AfterValidator(check_name),
    Field(json_schema_extra={"pattern": NAME_PATTERN}, examples=["pydocs"]),
]

Reference = Annotated[str, Field(max_length=140, json_schema_extra={"pattern": REFERENCE_PATTERN})]


def _as_integer(value: Any) -> Any:
    """Return a number without a fraction as an integer: in JSON Schema, 3.0 is one."""
    return int(value) if type(value) is float and value.is_integer() else value


# Of an integer, after its limits: limits that follow it are missing in the schema.
WHOLE: Final = BeforeValidator(_as_integer)
Index = Annotated[int, Field(ge=0, le=MAX_INDEX), WHOLE]
Value = Annotated[float, Field(ge=-FLOAT32_MAX, le=FLOAT32_MAX, allow_inf_nan=False)]


# fail_fast: only the first of a million invalid numbers is reported, because collecting all errors
# would take a minute and two gigabytes
Indices = Annotated[list[Index], Field(fail_fast=True)]
Values = Annotated[list[Value], Field(fail_fast=True)]
Labels = Annotated[
    list[Annotated[str, Field(max_length=MAX_LABEL_CHARS)]],
    Field(min_length=1, max_length=MAX_FILTER_LABELS, fail_fast=True),
]


class Strict(BaseModel):
    """Base class of requests."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class View(BaseModel):
    """Base class of replies."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class HistogramView(View):
    """A histogram: `counts[i]` values lie in [edges[i], edges[i + 1]); the last bin has its end."""

    edges: list[float]
    counts: list[int]


class Problem(View):
    """An error (RFC 9457, application/problem+json)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    kind: str = Field(description="Name of the exception class in xcray.errors.")
    request_id: str
    hint: str | None = None
