"""The Open Inference Protocol's objects: what requests under /v2 may say and replies do say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from xcray.service.schemas.base import LABEL_LIMIT, LABELS_LIMIT, MOST_MILLISECONDS, Strict, View

Datatype = Literal["BOOL", "INT32", "INT64", "FP32", "FP64", "BYTES"]
Dimension = Annotated[int, Field(ge=0, le=2**53)]
Shape = Annotated[list[Dimension], Field(min_length=1, max_length=4)]
OneLabel = Annotated[str, Field(max_length=LABEL_LIMIT)]
Named = Annotated[list[OneLabel], Field(min_length=1, max_length=LABELS_LIMIT, fail_fast=True)]


class TensorParameters(Strict):
    """Of a tensor that is sent."""

    binary_data_size: int | None = Field(
        None, ge=0, le=2**53, description="Bytes of it behind the JSON object."
    )
    content_type: str | None = Field(
        None, max_length=64, description="What other servers want to know; without a meaning here."
    )


class InferInput(Strict):
    """A tensor: its elements in `data`, row by row (nested, or flat), or behind the JSON object."""

    name: Literal["text", "indptr", "indices", "values", "dense"]
    shape: Shape
    datatype: Datatype
    parameters: TensorParameters | None = None
    data: list[Any] | None = None


class OutputParameters(Strict):
    """Of a tensor that is wanted."""

    binary_data: bool | None = Field(None, description="Send it behind the JSON object.")
    content_type: str | None = Field(None, max_length=64, description="Without a meaning here.")


class InferOutput(Strict):
    """A tensor that is wanted."""

    name: Literal["labels", "scores", "label_ids", "probabilities", "exact"]
    parameters: OutputParameters | None = None


class InferParameters(Strict):
    """What is asked, with the meanings of POST /v1/models/{reference}:predict."""

    top_k: int = Field(5, ge=1)
    allow: OneLabel | Named | None = Field(
        None, description="One label, or several; set:NAME for the labels of a set."
    )
    deny: OneLabel | Named | None = Field(None, description="Named in the same way.")
    deadline_ms: float | None = Field(None, gt=0, le=MOST_MILLISECONDS)
    probabilities: bool = False
    binary_data_output: bool = Field(
        False, description="Send all tensors behind the JSON object that do not say otherwise."
    )


class InferRequest(Strict):
    """One of three sets of tensors: `text` (BYTES [n]); `dense` (FP32 [n, features]); or sparse rows as `indptr` (INT64 [n + 1]),
    `indices` (INT32 [entries]) and `values` (FP32 [entries]). INT32, INT64, FP32 and FP64 may stand for each other's kind."""

    id: str | None = Field(None, max_length=1024, description="Comes back in the reply.")
    model_name: str | None = Field(None, max_length=128, description="Must be that of the path.")
    model_version: str | None = Field(
        None, max_length=16, description="Without a meaning here: the path has it."
    )
    parameters: InferParameters | None = None
    inputs: list[InferInput] = Field(min_length=1, max_length=5)
    outputs: list[InferOutput] | None = Field(
        None, max_length=5, description="None: labels, scores and label_ids."
    )


class TensorView(View):
    """A tensor of a reply. Without `data`, its bytes stand behind the JSON object."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferReply(View):
    """labels BYTES [n, k], scores FP64 [n, k], label_ids INT64 [n, k]; when wanted probabilities FP64 [n, k], exact BOOL [n]."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[TensorView]


class TensorMetadata(View):
    """A tensor that a model takes or gives; -1 is any size. Inputs of one `form` are sent together, one form a request."""

    name: str
    datatype: Datatype
    shape: list[int]
    parameters: dict[str, str] | None = None


class ModelMetadata(View):
    """A model: the versions that may be asked, the tensors it takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(View):
    """This server, and the extensions of the protocol that it knows."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(View):
    """Alive."""

    live: bool


class ServerReady(View):
    """Whether requests are welcome."""

    live: bool
    ready: bool


class ModelReady(View):
    """Whether a model answers."""

    name: str
    ready: bool


class IndexRequest(Strict):
    """Which models to list."""

    ready: bool = Field(False, description="Only those that are loaded.")


class IndexEntry(View):
    """A version: READY when it is loaded, else UNAVAILABLE until the first request loads it."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class RepositoryParameters(Strict):
    """Of a load or unload."""

    version: str | None = Field(
        None,
        pattern=r"^[1-9][0-9]{0,8}$",
        description="Which version. None: the latest; to unload: all.",
    )


class RepositoryRequest(Strict):
    """The body of a load or unload, which may be left out."""

    parameters: RepositoryParameters | None = None


class InferenceProblem(View):
    """An error, as the protocol wants it: a sentence in `error`; the members of a problem document beside it."""

    error: str
    code: str
    request_id: str
