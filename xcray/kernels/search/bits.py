"""Numbers of two, three and four bytes at any byte of an array, and floats as their bits: what packed lists are read with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_I8, _I16, _I32, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()


def _load(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    """A load of `kind` from byte args[1] of array args[0], wherever it lies."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    place = builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())
    value = builder.load(place)
    value.align = 1
    return value


def _load16(typing: Any, data: Any, place: Any) -> Any:
    """Bytes place and place + 1 of a uint8 array as uint16, lowest first (no check of bounds; place is int64)."""
    return types.uint16(data, types.int64), lambda c, b, s, args: _load(c, b, s, args, _I16)


def _load32(typing: Any, data: Any, place: Any) -> Any:
    """Four bytes of a uint8 array from `place` on as uint32, lowest first (no check of bounds; place is int64)."""
    return types.uint32(data, types.int64), lambda c, b, s, args: _load(c, b, s, args, _I32)


def _float_of(typing: Any, bits: Any) -> Any:
    """The float32 that these bits (uint32) are."""
    return types.float32(types.uint32), lambda context, builder, signature, args: builder.bitcast(
        args[0], _F32
    )


def _bits_of(typing: Any, value: Any) -> Any:
    """The bits of a float32 as uint32."""
    return types.uint32(types.float32), lambda context, builder, signature, args: builder.bitcast(
        args[0], _I32
    )


def _prefetch(typing: Any, data: Any, place: Any) -> Any:
    """Ask for the cache line of an entry of an array, which is going to be read; a hint, without effect on any result."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.bitcast(builder.gep(array.data, [args[1]]), _I8.as_pointer())
        hint = builder.module.globals.get("llvm.prefetch.p0i8")
        if hint is None:
            kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
            hint = ir.Function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(hint, [place, _I32(0), _I32(3), _I32(1)])  # to read, to all caches, data
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


load16: Callable[..., Any] = intrinsic(_load16)
load32: Callable[..., Any] = intrinsic(_load32)
float_of: Callable[..., Any] = intrinsic(_float_of)
bits_of: Callable[..., Any] = intrinsic(_bits_of)
prefetch: Callable[..., Any] = intrinsic(_prefetch)

int64: Callable[..., Any] = (
    np.int64
)  # in a kernel a Python int is one of 64 bits: type checkers are told so
float32: Callable[..., Any] = np.float32
float64: Callable[..., Any] = np.float64
