"""Base classes and field types of request and reply schemas.

Requests are strict: no unknown fields, no strings for numbers, no NaN.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from xcray.storage.atomic import NAME_PATTERN, check_name

MAX_INDEX = 2**31 - 2
FLOAT32_MAX = 3.4028234663852886e38
MAX_TEXT_CHARS = 1_000_000  # characters
MAX_SECONDS = 366 * 86400.0
MAX_MILLISECONDS = 600_000.0
MAX_LABEL_CHARS = 10_000  # characters per label name
MAX_FILTER_LABELS = 100_000  # labels per allow or deny list

Name = Annotated[
    str,
    AfterValidator(check_name),
    Field(json_schema_extra={"pattern": f"^{NAME_PATTERN.pattern}$"}, examples=["pydocs"]),
]
Index = Annotated[int, Field(ge=0, le=MAX_INDEX)]
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
