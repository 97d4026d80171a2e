"""Unaligned loads of 2 and 4 bytes, and casts between floats and their bits, for packed lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_I8, _I16, _I32, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()


def _load(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    """Load a value of `kind` at byte args[1] of array args[0], at any alignment."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    position = builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())
    value = builder.load(position)
    value.align = 1
    return value


def _load16(typing: Any, data: Any, position: Any) -> Any:
    """Load bytes position and position + 1 of a uint8 array as uint16, little-endian.

    No bounds check; position is int64.
    """
    return types.uint16(data, types.int64), lambda c, b, s, args: _load(c, b, s, args, _I16)


def _load32(typing: Any, data: Any, position: Any) -> Any:
    """Load four bytes of a uint8 array at `position` as uint32, little-endian.

    No bounds check; position is int64.
    """
    return types.uint32(data, types.int64), lambda c, b, s, args: _load(c, b, s, args, _I32)


def _float_of(typing: Any, bits: Any) -> Any:
    """Return the float32 with these bits (uint32)."""
    return types.float32(types.uint32), lambda context, builder, signature, args: builder.bitcast(
        args[0], _F32
    )


def _bits_of(typing: Any, value: Any) -> Any:
    """Return the bits of a float32 as uint32."""
    return types.uint32(types.float32), lambda context, builder, signature, args: builder.bitcast(
        args[0], _I32
    )


load16: Callable[..., Any] = intrinsic(_load16)
load32: Callable[..., Any] = intrinsic(_load32)
float_of: Callable[..., Any] = intrinsic(_float_of)
bits_of: Callable[..., Any] = intrinsic(_bits_of)

# in a kernel, a Python int has 64 bits; these casts are for type checkers
int64: Callable[..., Any] = np.int64
float32: Callable[..., Any] = np.float32
float64: Callable[..., Any] = np.float64
