"""What requests may say and replies do say. Requests are strict: no unknown fields, no strings for numbers, no NaN."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from xcray.storage.atomic import NAME, check_name

INDEX_LIMIT = 2**31 - 2
FLOAT32_MAX = 3.4028234663852886e38
TEXT_LIMIT = 1_000_000  # characters
MOST_SECONDS = 366 * 86400.0
MOST_MILLISECONDS = 600_000.0
LABEL_LIMIT = 10_000  # characters of a label's name
LABELS_LIMIT = 100_000  # labels of an allow or deny list

Name = Annotated[
    str,
    AfterValidator(check_name),
    Field(json_schema_extra={"pattern": f"^{NAME.pattern}$"}, examples=["pydocs"]),
]
Index = Annotated[int, Field(ge=0, le=INDEX_LIMIT)]
Value = Annotated[float, Field(ge=-FLOAT32_MAX, le=FLOAT32_MAX, allow_inf_nan=False)]


# fail_fast: of a million wrong numbers the first is told; collecting all would take a minute and two gigabytes
Indices = Annotated[list[Index], Field(fail_fast=True)]
Values = Annotated[list[Value], Field(fail_fast=True)]
Labels = Annotated[
    list[Annotated[str, Field(max_length=LABEL_LIMIT)]],
    Field(min_length=1, max_length=LABELS_LIMIT, fail_fast=True),
]


class Strict(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class View(BaseModel):
    """A part of a reply."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class Problem(View):
    """An error (RFC 9457, application/problem+json)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    kind: str = Field(description="The class in xcray.errors.")
    request_id: str
    hint: str | None = None
