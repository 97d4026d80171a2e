"""Schemas of the Open Inference Protocol: requests and replies under /v2."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from xcray.api.options import ThresholdOptions
from xcray.service.schemas.base import (
    MAX_FILTER_LABELS,
    MAX_LABEL_CHARS,
    MAX_MILLISECONDS,
    WHOLE,
    Strict,
    View,
)
from xcray.service.schemas.declared import declared_field

MAX_DIMENSION: Final = 2**53
DEFAULT_TOP_K: Final = 5
MAX_TENSORS: Final = 5  # input tensors of a request
MAX_OUTPUTS: Final = 5
MAX_TYPE_CHARS: Final = 64
MAX_ID_CHARS: Final = 1024
MAX_MODEL_NAME_CHARS: Final = 128
MAX_VERSION_CHARS: Final = 16
Datatype = Literal["BOOL", "INT32", "INT64", "FP32", "FP64", "BYTES"]
InputName = Literal["text", "indptr", "indices", "values", "dense"]
OutputName = Literal["labels", "scores", "label_ids", "probabilities", "exact"]
Dimension = Annotated[int, Field(ge=0, le=MAX_DIMENSION), WHOLE]
Shape = Annotated[list[Dimension], Field(min_length=1, max_length=4)]
LabelName = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]
LabelNames = Annotated[
    list[LabelName], Field(min_length=1, max_length=MAX_FILTER_LABELS, fail_fast=True)
]


class TensorParameters(Strict):
    """Parameters of an input tensor."""

    binary_data_size: Dimension | None = Field(
        None, description="Size of the tensor's data after the JSON object."
    )
    content_type: str | None = Field(
        None, max_length=MAX_TYPE_CHARS, description="Accepted for compatibility and ignored."
    )


class InferInput(Strict):
    """An input tensor.

    Its elements are in `data`, row by row (nested or flat), or in binary form after the JSON
    object.
    """

    name: InputName
    shape: Shape
    datatype: Datatype
    parameters: TensorParameters | None = None
    data: list[Any] | None = None


class OutputParameters(Strict):
    """Parameters of a requested output tensor."""

    binary_data: bool | None = Field(
        None, description="Send the tensor in binary form after the JSON object."
    )
    content_type: str | None = Field(
        None, max_length=MAX_TYPE_CHARS, description="Accepted for compatibility and ignored."
    )


class InferOutput(Strict):
    """A requested output tensor."""

    name: OutputName
    parameters: OutputParameters | None = None


class InferParameters(Strict):
    """Prediction options, with the meanings of POST /v1/models/{reference}:predict."""

    top_k: Annotated[int, Field(ge=1), WHOLE] = DEFAULT_TOP_K
    allow: LabelName | LabelNames | None = Field(
        None, description="One or several label names; set:NAME for the labels of a set."
    )
    deny: LabelName | LabelNames | None = Field(None, description="Same syntax as `allow`.")
    min_score: float | None = declared_field(ThresholdOptions, "min_score")
    min_probability: float | None = declared_field(ThresholdOptions, "min_probability")
    label_thresholds: bool = declared_field(ThresholdOptions, "label_thresholds")
    deadline_ms: float | None = Field(None, gt=0, le=MAX_MILLISECONDS)
    probabilities: bool = False
    binary_data_output: bool = Field(
        False, description="Default of `binary_data` for all output tensors."
    )
    content_type: str | None = Field(
        None, max_length=MAX_TYPE_CHARS, description="Accepted for compatibility and ignored."
    )


class InferRequest(Strict):
    """An inference request with one of three sets of input tensors.

    `text` (BYTES [n]); `dense` (FP32 [n, features]); or sparse rows as `indptr` (INT64 [n + 1]),
    `indices` (INT32 [entries]) and `values` (FP32 [entries]). INT32 and INT64 are interchangeable,
    and so are FP32 and FP64.
    """

    id: str | None = Field(None, max_length=MAX_ID_CHARS, description="Returned in the reply.")
    model_name: str | None = Field(
        None,
        max_length=MAX_MODEL_NAME_CHARS,
        description="If set, must be the model name in the path.",
    )
    model_version: str | None = Field(
        None, max_length=MAX_VERSION_CHARS, description="Ignored: the version is in the path."
    )
    parameters: InferParameters | None = None
    inputs: list[InferInput] = Field(min_length=1, max_length=MAX_TENSORS)
    outputs: list[InferOutput] | None = Field(
        None, max_length=MAX_OUTPUTS, description="Default: labels, scores and label_ids."
    )


class TensorView(View):
    """An output tensor. Without `data`, its elements follow the JSON object in binary form."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferReply(View):
    """The output tensors of a prediction.

    labels BYTES [n, k], scores FP64 [n, k], label_ids INT64 [n, k]; if requested, probabilities
    FP64 [n, k] and exact BOOL [n].
    """

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[TensorView]


class TensorMetadata(View):
    """An input or output tensor of a model; -1 means any size.

    Input tensors with the same parameter "form" are sent together, one form per request.
    """

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, str] | None = None


class ModelMetadata(View):
    """A model: its versions, and its input and output tensors."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(View):
    """The server and its protocol extensions."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(View):
    """Liveness."""

    live: bool


class ServerReady(View):
    """Whether the server accepts requests."""

    live: bool
    ready: bool


class ModelReady(View):
    """Whether a model can answer."""

    name: str
    ready: bool


class IndexRequest(Strict):
    """Filter of the model list."""

    ready: bool = Field(False, description="List only loaded versions.")


class IndexEntry(View):
    """A version: READY if loaded, else UNAVAILABLE until the first request loads it."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class RepositoryParameters(Strict):
    """Parameters of a load or unload request."""

    version: str | None = Field(
        None,
        pattern=r"^[1-9][0-9]{0,8}$",
        description="The version. Default: the latest version to load, all versions to unload.",
    )
    unload_dependents: bool = Field(
        False, description="Accepted from Triton's clients; no model depends on another."
    )


class RepositoryRequest(Strict):
    """The optional body of a load or unload request."""

    parameters: RepositoryParameters | None = None


class InferenceProblem(View):
    """An error as the protocol defines it: a message in `error`.

    The other members are those of a problem document.
    """

    error: str
    code: str
    request_id: str
