"""Tensors of the protocol as arrays and texts, read from and written to JSON or bytes.

Binary tensors follow the JSON object in the order of their names there: little-endian, row by row.
A BOOL is one byte, a string its length in four bytes followed by its UTF-8 bytes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xcray.errors import InputError
from xcray.service.schemas.base import MAX_TEXT_CHARS

Numbers: TypeAlias = "NDArray[Any]"

DTYPES: Final = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "|b1",
        "INT32": "<i4",
        "INT64": "<i8",
        "FP32": "<f4",
        "FP64": "<f8",
    }.items()
}


class InputTensor(NamedTuple):
    """An input tensor as the JSON object describes it.

    location: for errors. data: its elements if they are in the JSON object; otherwise they take
    `size` bytes of those after it, from `begin`.
    """

    name: str
    location: str
    datatype: str
    shape: list[int]
    n_elements: int
    data: Sequence[Any] | None
    begin: int
    size: int | None


_LENGTH: Final = struct.Struct("<I")
_JSON_KINDS: Final[dict[str, set[type]]] = {
    "BOOL": {bool},
    "INT32": {int},
    "INT64": {int},
    "FP32": {int, float},
    "FP64": {int, float},
    "BYTES": {str},
}


def read_texts(tensor: InputTensor, binary: bytes) -> list[str]:
    """Return the strings of a BYTES tensor. Raises InputError."""
    strings = _flat_data(tensor) if tensor.size is None else _decode_strings(tensor, binary)
    if max(map(len, strings), default=0) > MAX_TEXT_CHARS:
        too_long = next(i for i, text in enumerate(strings) if len(text) > MAX_TEXT_CHARS)
        raise InputError(
            f"{tensor.location}: text {too_long} has more than {MAX_TEXT_CHARS:,} characters",
            code="LENGTH",
            loc=tensor.location,
        )
    return strings


def read_numbers(tensor: InputTensor, binary: bytes) -> Numbers:
    """Return the elements of a numeric tensor: flat, finite and aligned. Raises InputError.

    Elements in JSON become float64 or int64.
    """
    dtype = DTYPES[tensor.datatype]
    elements = (
        _numbers_in_json(tensor, dtype)
        if tensor.size is None
        else _numbers_in_bytes(tensor, dtype, binary)
    )
    if dtype.kind == "f" and np.count_nonzero(np.isfinite(elements)) < len(elements):
        raise InputError(
            f"{tensor.location} has a number that is not finite: omit the entry",
            code="NOT_FINITE",
            loc=tensor.location,
        )
    return elements


def _numbers_in_bytes(tensor: InputTensor, dtype: np.dtype[Any], binary: bytes) -> Numbers:
    """Return the elements of a binary tensor."""
    if tensor.size != tensor.n_elements * dtype.itemsize:
        sizes = (
            f"{tensor.n_elements:,} elements of {tensor.datatype} take "
            f"{tensor.n_elements * dtype.itemsize:,} bytes, got {tensor.size:,}"
        )
        raise InputError(f"{tensor.location}: {sizes}", code="TENSOR_SIZE", loc=tensor.location)
    elements: Numbers = np.frombuffer(binary, dtype, tensor.n_elements, tensor.begin)
    return elements if elements.flags.aligned else elements.copy()


def _numbers_in_json(tensor: InputTensor, dtype: np.dtype[Any]) -> Numbers:
    """Return the elements of a tensor in JSON as float64 or int64."""
    try:
        return np.array(_flat_data(tensor), np.float64 if dtype.kind == "f" else np.int64)
    except OverflowError:
        raise InputError(
            f"{tensor.location}: an integer is too large for {tensor.datatype}",
            code="RANGE",
            loc=tensor.location,
        ) from None


def strings_to_binary(strings: Sequence[memoryview]) -> bytes:
    """Return UTF-8 strings as a binary tensor."""
    return b"".join([_LENGTH.pack(len(text)) + text for text in strings])


def numbers_to_binary(numbers: Numbers) -> bytes:
    """Return numbers as a binary tensor."""
    return (numbers.byteswap() if sys.byteorder == "big" else numbers).tobytes()


def _flat_data(tensor: InputTensor) -> list[Any]:
    """Return the elements in `data`, flat or nested by the shape, after checking their types."""
    data = list(tensor.data or ())
    kinds = set(map(type, data))
    if list in kinds:
        level: list[Any] = [data]
        for size in tensor.shape:
            if any(not isinstance(part, list) or len(part) != size for part in level):
                raise InputError(
                    f"{tensor.location}: data is not nested according to its shape {tensor.shape}",
                    code="TENSOR_SHAPE",
                    loc=tensor.location,
                )
            level = list(chain.from_iterable(level))
        data = level
        kinds = set(map(type, data))
    if len(data) != tensor.n_elements:
        sizes = (
            f"data has {len(data):,} elements, shape {tensor.shape} requires {tensor.n_elements:,}"
        )
        raise InputError(f"{tensor.location}: {sizes}", code="TENSOR_SHAPE", loc=tensor.location)
    if not kinds <= _JSON_KINDS[tensor.datatype]:
        raise InputError(
            f"{tensor.location}: data has an element that is not a valid {tensor.datatype}",
            code="TYPE",
            loc=tensor.location,
        )
    return data


def _decode_strings(tensor: InputTensor, binary: bytes) -> list[str]:
    """Return the strings of a binary tensor, each preceded by its length."""
    assert tensor.size is not None
    out: list[str] = []
    begin, stop = tensor.begin, tensor.begin + tensor.size
    while begin < stop and len(out) < tensor.n_elements:
        (length,) = _LENGTH.unpack_from(binary, begin) if begin + 4 <= stop else (tensor.size,)
        begin, end = begin + 4, begin + 4 + length
        if end > stop:
            raise InputError(
                f"{tensor.location}: string {len(out)} ends beyond the tensor's bytes",
                code="TENSOR_SIZE",
                loc=tensor.location,
            )
        try:
            out.append(str(binary[begin:end], "utf-8"))
        except UnicodeDecodeError:
            raise InputError(
                f"{tensor.location}: string {len(out)} is not UTF-8",
                code="ENCODING",
                loc=tensor.location,
            ) from None
        begin = end
    if begin != stop or len(out) != tensor.n_elements:
        raise InputError(
            f"{tensor.location}: the shape requires {tensor.n_elements:,} strings, which its bytes "
            "do not match",
            code="TENSOR_SIZE",
            loc=tensor.location,
        )
    return out
