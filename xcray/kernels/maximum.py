"""The larger of two floating-point numbers, in a form that compilers vectorise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

SUFFIXES = {types.float32: "f32", types.float64: "f64"}


def _maximum(typing: Any, x: Any, y: Any) -> Any:
    """Return the larger of two numbers of one type, none of them NaN.

    A loop of comparisons is not vectorised, with any flags; a loop of this function is.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.args[0])
        name = f"llvm.maxnum.{SUFFIXES[signature.args[0]]}"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(kind, [kind, kind]), name)
        return builder.call(function, args, fastmath=("nnan", "nsz"))

    return x(x, x), generate


maximum: Callable[..., Any] = intrinsic(_maximum)
