"""Prefetch of an array entry into the caches of the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_I8, _I32 = ir.IntType(8), ir.IntType(32)


def _prefetch(typing: Any, data: Any, position: Any) -> Any:
    """Prefetch the cache line of an array entry; no effect on any result."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        position = builder.bitcast(builder.gep(array.data, [args[1]]), _I8.as_pointer())
        hint = builder.module.globals.get("llvm.prefetch.p0i8")
        if hint is None:
            kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
            hint = ir.Function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(hint, [position, _I32(0), _I32(3), _I32(1)])  # to read, to all caches, data
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


prefetch: Callable[..., Any] = intrinsic(_prefetch)
