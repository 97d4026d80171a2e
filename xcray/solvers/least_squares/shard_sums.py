"""Sums over row shards in a fixed order, and the preconditioner made from such a sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from xcray.arrays import Float64
from xcray.errors import ParameterError
from xcray.solvers.group_contract import WorkerCalls
from xcray.solvers.least_squares.gram import solver_of

A = TypeVar("A")
P = ParamSpec("P")


def of_shard(
    method: Callable[Concatenate[Any, int, P], tuple[A, float]],
) -> Callable[Concatenate[Any, int, P], tuple[A | None, float | None]]:
    """Decorate a method that returns the array and the value of the worker's shard number `step`.

    Without such a shard it returns (None, None), as `sum_over_shards` expects.
    """

    @wraps(method)
    def call(
        self: Any, step: int, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[A | None, float | None]:
        if step >= len(self.shards):
            return None, None
        return method(self, step, *args, **kwargs)

    return call


def sum_over_shards(
    workers: WorkerCalls, shards: int, method: Callable[..., Any], *args: Any
) -> tuple[Any, float]:
    """Return the sums of arrays and values of a method over all shards, in the order of shards.

    method: see `of_shard`; an array is one of NumPy, which is added in float64, or a sparse one of
    scipy. Worker w of P holds shards w, w + P, ... The caller holds the arrays of one shard per
    worker at a time.
    """
    arrays: list[Any] = []
    total = 0.0
    for step in range(-(-shards // workers.size)):
        for handle, value in workers.call(method, step, *args):
            if value is not None:
                part = workers.fetch(handle)
                arrays = [_add(arrays[0], part)] if arrays else [_own(part)]
                total += value
    return arrays[0], total


def _own(part: Any) -> Any:
    """Return a float64 copy of an array that may be shared; a sparse one unchanged."""
    return part.astype(np.float64) if isinstance(part, np.ndarray) else part


def _add(array: Any, part: Any) -> Any:
    """Return the sum; an array of NumPy is changed in place."""
    if isinstance(array, np.ndarray):
        array += part
        return array
    return array + part


def preconditioner(
    gram_of: Callable[[bool], Float64], lam: float, *, double: bool
) -> tuple[Callable[[Float64], Float64], bool]:
    """Return the map G -> (gram + lam I)^-1 G, and whether float64 was needed.

    gram_of: returns the second moments with products in float64 or not. double: start with
    float64. Raises ParameterError if the matrix is not positive definite in float64.
    """
    solve = solver_of(gram_of(double), lam)
    if solve is not None:
        return solve, double
    if double:
        raise ParameterError(f"lam {lam:g} is too small for these features: choose a larger one")
    return preconditioner(gram_of, lam, double=True)
