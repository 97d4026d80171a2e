"""Tensors of the protocol as arrays and texts, read from JSON or from bytes, and written as either.

Binary tensors stand behind the JSON object in the order of their names there: little-endian, row by row; a BOOL is a byte, a
string its length in four bytes and its UTF-8.
"""

from __future__ import annotations

import math
import struct
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xcray.errors import InputError
from xcray.service.schemas.base import TEXT_LIMIT
from xcray.service.schemas.inference import InferInput

Numbers: TypeAlias = "NDArray[Any]"

DTYPES: Final = {"BOOL": "|b1", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8"}
_LENGTH: Final = struct.Struct("<I")
_JSON_KINDS: Final[dict[str, set[type]]] = {
    "BOOL": {bool},
    "INT32": {int},
    "INT64": {int},
    "FP32": {int, float},
    "FP64": {int, float},
    "BYTES": {str},
}


def split(inputs: list[InferInput], binary: memoryview) -> list[memoryview | None]:
    """The bytes of each tensor, None for those in JSON. Raises InputError TENSOR_SIZE when they do not add up to all bytes."""
    sizes = [tensor.parameters.binary_data_size if tensor.parameters else None for tensor in inputs]
    total = sum(size or 0 for size in sizes)
    if total != len(binary):
        told = f"binary_data_size of all inputs is {total:,}, behind the JSON object are {len(binary):,} bytes"
        raise InputError(told, code="TENSOR_SIZE", loc="inputs")
    out: list[memoryview | None] = []
    begin = 0
    for i, (tensor, size) in enumerate(zip(inputs, sizes, strict=True)):
        if (size is None) == (tensor.data is None):
            raise InputError(
                f"inputs[{i}] needs data, or binary_data_size; one of them",
                code="TENSOR_DATA",
                loc=f"inputs[{i}]",
            )
        out.append(None if size is None else binary[begin : begin + size])
        begin += size or 0
    return out


def texts(tensor: InferInput, binary: memoryview | None, place: str) -> list[str]:
    """The strings of a BYTES tensor. Raises InputError."""
    found = (
        _flat(tensor, place) if binary is None else _strings(binary, math.prod(tensor.shape), place)
    )
    long = next((i for i, text in enumerate(found) if len(text) > TEXT_LIMIT), None)
    if long is not None:
        raise InputError(
            f"{place}: text {long} has more than {TEXT_LIMIT:,} characters",
            code="LENGTH",
            loc=place,
        )
    return found


def numbers(tensor: InferInput, binary: memoryview | None, place: str) -> Numbers:
    """The elements of a tensor of numbers, flat, finite; JSON's as float64 or int64. Raises InputError."""
    dtype = np.dtype(DTYPES[tensor.datatype])
    count = math.prod(tensor.shape)
    if binary is not None:
        if len(binary) != count * dtype.itemsize:
            sizes = f"{count:,} elements of {tensor.datatype} take {count * dtype.itemsize:,} bytes, not {len(binary):,}"
            raise InputError(f"{place}: {sizes}", code="TENSOR_SIZE", loc=place)
        found: Numbers = np.frombuffer(binary, dtype)
    else:
        try:
            found = np.array(_flat(tensor, place), np.float64 if dtype.kind == "f" else np.int64)
        except OverflowError:
            raise InputError(
                f"{place}: an integer is too large for {tensor.datatype}", code="RANGE", loc=place
            ) from None
    if dtype.kind == "f" and not bool(np.isfinite(found).all()):
        raise InputError(
            f"{place} has a number that is not finite: leave the entry out",
            code="NOT_FINITE",
            loc=place,
        )
    return found


def binary_of(values: Numbers | list[str]) -> bytes:
    """A tensor of a reply as bytes."""
    if isinstance(values, list):
        encoded = [text.encode() for text in values]
        return b"".join(chain.from_iterable((_LENGTH.pack(len(text)), text) for text in encoded))
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _flat(tensor: InferInput, place: str) -> list[Any]:
    """The elements in `data`, nested by the shape or not at all, each of the tensor's kind."""
    data = tensor.data or []
    if any(isinstance(entry, list) for entry in data):
        level: list[Any] = [data]
        for size in tensor.shape:
            if any(not isinstance(part, list) or len(part) != size for part in level):
                raise InputError(
                    f"{place}: data is not nested as its shape {tensor.shape} says",
                    code="TENSOR_SHAPE",
                    loc=place,
                )
            level = list(chain.from_iterable(level))
        data = level
    if len(data) != math.prod(tensor.shape):
        sizes = f"data has {len(data):,} elements, shape {tensor.shape} means {math.prod(tensor.shape):,}"
        raise InputError(f"{place}: {sizes}", code="TENSOR_SHAPE", loc=place)
    if not set(map(type, data)) <= _JSON_KINDS[tensor.datatype]:
        raise InputError(
            f"{place}: data holds something that is no {tensor.datatype}", code="TYPE", loc=place
        )
    return data


def _strings(binary: memoryview, count: int, place: str) -> list[str]:
    """`count` strings, each behind its length."""
    out: list[str] = []
    begin = 0
    while begin < len(binary) and len(out) < count:
        (length,) = (
            _LENGTH.unpack_from(binary, begin) if begin + 4 <= len(binary) else (len(binary),)
        )
        begin, end = begin + 4, begin + 4 + length
        if end > len(binary):
            raise InputError(
                f"{place}: string {len(out)} ends behind the tensor's bytes",
                code="TENSOR_SIZE",
                loc=place,
            )
        try:
            out.append(str(binary[begin:end], "utf-8"))
        except UnicodeDecodeError:
            raise InputError(
                f"{place}: string {len(out)} is not UTF-8", code="ENCODING", loc=place
            ) from None
        begin = end
    if begin != len(binary) or len(out) != count:
        raise InputError(
            f"{place}: shape means {count:,} strings, there are others in its bytes",
            code="TENSOR_SIZE",
            loc=place,
        )
    return out
