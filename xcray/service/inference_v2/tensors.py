"""Tensors of the protocol as arrays and texts, read from and written to JSON or bytes.

Binary tensors follow the JSON object in the order of their names there: little-endian, row by row.
A BOOL is one byte, a string its length in four bytes followed by its UTF-8 bytes.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xcray.errors import InputError
from xcray.service.schemas.base import MAX_TEXT_CHARS

Numbers: TypeAlias = "NDArray[Any]"

DTYPES: Final = {"BOOL": "|b1", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8"}


class InputTensorParameters(Protocol):
    """Interface of the parameters of an input tensor, independent of the decoder."""

    @property
    def binary_data_size(self) -> int | None:
        """Bytes of the tensor after the JSON object."""


class InputTensor(Protocol):
    """Interface of an input tensor, independent of the decoder."""

    @property
    def name(self) -> str:
        """Name of the tensor."""

    @property
    def shape(self) -> list[int]:
        """Sizes of its dimensions."""

    @property
    def datatype(self) -> str:
        """Type of its elements."""

    @property
    def parameters(self) -> InputTensorParameters | None:
        """Its parameters."""

    @property
    def data(self) -> Sequence[Any] | None:
        """Its elements, if they are in the JSON object."""


_LENGTH: Final = struct.Struct("<I")
_JSON_KINDS: Final[dict[str, set[type]]] = {
    "BOOL": {bool},
    "INT32": {int},
    "INT64": {int},
    "FP32": {int, float},
    "FP64": {int, float},
    "BYTES": {str},
}


def split_binary(inputs: Sequence[InputTensor], binary: memoryview) -> list[memoryview | None]:
    """Return the bytes of each tensor, None for those in JSON.

    Raises InputError TENSOR_SIZE if the sizes do not add up to the length of `binary`.
    """
    sizes = [tensor.parameters.binary_data_size if tensor.parameters else None for tensor in inputs]
    total = sum(size or 0 for size in sizes)
    if total != len(binary):
        message = (
            f"binary_data_size of all inputs is {total:,}, but {len(binary):,} bytes follow the "
            "JSON object"
        )
        raise InputError(message, code="TENSOR_SIZE", loc="inputs")
    out: list[memoryview | None] = []
    begin = 0
    for i, (tensor, size) in enumerate(zip(inputs, sizes, strict=True)):
        if (size is None) == (tensor.data is None):
            raise InputError(
                f"inputs[{i}] needs either data or binary_data_size",
                code="TENSOR_DATA",
                loc=f"inputs[{i}]",
            )
        out.append(None if size is None else binary[begin : begin + size])
        begin += size or 0
    return out


def read_texts(tensor: InputTensor, binary: memoryview | None, location: str) -> list[str]:
    """Return the strings of a BYTES tensor. Raises InputError."""
    strings = (
        _flat_data(tensor, location)
        if binary is None
        else _decode_strings(binary, math.prod(tensor.shape), location)
    )
    too_long = next((i for i, text in enumerate(strings) if len(text) > MAX_TEXT_CHARS), None)
    if too_long is not None:
        raise InputError(
            f"{location}: text {too_long} has more than {MAX_TEXT_CHARS:,} characters",
            code="LENGTH",
            loc=location,
        )
    return strings


def read_numbers(tensor: InputTensor, binary: memoryview | None, location: str) -> Numbers:
    """Return the elements of a numeric tensor, flat and finite. Raises InputError.

    Elements in JSON become float64 or int64.
    """
    dtype = np.dtype(DTYPES[tensor.datatype])
    count = math.prod(tensor.shape)
    if binary is not None:
        if len(binary) != count * dtype.itemsize:
            sizes = (
                f"{count:,} elements of {tensor.datatype} take {count * dtype.itemsize:,} bytes, "
                f"got {len(binary):,}"
            )
            raise InputError(f"{location}: {sizes}", code="TENSOR_SIZE", loc=location)
        elements: Numbers = np.frombuffer(binary, dtype)
    else:
        try:
            elements = np.array(
                _flat_data(tensor, location), np.float64 if dtype.kind == "f" else np.int64
            )
        except OverflowError:
            raise InputError(
                f"{location}: an integer is too large for {tensor.datatype}",
                code="RANGE",
                loc=location,
            ) from None
    if dtype.kind == "f" and np.count_nonzero(np.isfinite(elements)) < len(elements):
        raise InputError(
            f"{location} has a number that is not finite: omit the entry",
            code="NOT_FINITE",
            loc=location,
        )
    return elements


def to_binary(values: Numbers | list[str]) -> bytes:
    """Return an output tensor as bytes."""
    if isinstance(values, list):
        encoded = [text.encode() for text in values]
        return b"".join([_LENGTH.pack(len(text)) + text for text in encoded])
    return (values.byteswap() if sys.byteorder == "big" else values).tobytes()


def _flat_data(tensor: InputTensor, location: str) -> list[Any]:
    """Return the elements in `data`, flat or nested by the shape, after checking their types."""
    data = list(tensor.data or ())
    kinds = set(map(type, data))
    if list in kinds:
        level: list[Any] = [data]
        for size in tensor.shape:
            if any(not isinstance(part, list) or len(part) != size for part in level):
                raise InputError(
                    f"{location}: data is not nested according to its shape {tensor.shape}",
                    code="TENSOR_SHAPE",
                    loc=location,
                )
            level = list(chain.from_iterable(level))
        data = level
        kinds = set(map(type, data))
    if len(data) != math.prod(tensor.shape):
        sizes = (
            f"data has {len(data):,} elements, shape {tensor.shape} requires "
            f"{math.prod(tensor.shape):,}"
        )
        raise InputError(f"{location}: {sizes}", code="TENSOR_SHAPE", loc=location)
    if not kinds <= _JSON_KINDS[tensor.datatype]:
        raise InputError(
            f"{location}: data has an element that is not a valid {tensor.datatype}",
            code="TYPE",
            loc=location,
        )
    return data


def _decode_strings(binary: memoryview, count: int, location: str) -> list[str]:
    """Return `count` strings, each preceded by its length."""
    out: list[str] = []
    begin = 0
    while begin < len(binary) and len(out) < count:
        (length,) = (
            _LENGTH.unpack_from(binary, begin) if begin + 4 <= len(binary) else (len(binary),)
        )
        begin, end = begin + 4, begin + 4 + length
        if end > len(binary):
            raise InputError(
                f"{location}: string {len(out)} ends beyond the tensor's bytes",
                code="TENSOR_SIZE",
                loc=location,
            )
        try:
            out.append(str(binary[begin:end], "utf-8"))
        except UnicodeDecodeError:
            raise InputError(
                f"{location}: string {len(out)} is not UTF-8", code="ENCODING", loc=location
            ) from None
        begin = end
    if begin != len(binary) or len(out) != count:
        raise InputError(
            f"{location}: the shape requires {count:,} strings, which its bytes do not match",
            code="TENSOR_SIZE",
            loc=location,
        )
    return out
