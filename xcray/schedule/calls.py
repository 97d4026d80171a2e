"""Typed method calls of workers with state, as data.

A call names a method of the worker's class, so that a type checker sees the arguments and the
result. Only the name of the method, the arguments and handles are sent to the worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


class ObjectHandle(Generic[T_co]):
    """A reference to an object that a worker or the driver created.

    The object is freed with the last reference to the handle. ref: private to the worker group.
    """

    __slots__ = ("__weakref__", "ref")

    def __init__(self, held: Any) -> None:
        self.ref = held


class Call(Generic[T_co, R_co]):
    """A method call: worker, name of the method, and positional arguments.

    method: an unbound method of the worker's class, which returns (object or None, result). The
    object stays at the worker, the result is sent to the driver. An argument can be `at_worker` of
    a handle, or a list or tuple with some: the method gets the objects. Raises TypeError for
    keyword arguments.

    Example:
        >>> class Counter:
        ...     def add(self, n: int) -> tuple[None, int]:
        ...         return None, n
        >>> Call("worker-0", Counter.add, 2).method
        'add'
    """

    def __init__(
        self,
        worker: str,
        method: Callable[Concatenate[Any, P], tuple[T_co, R_co]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        if kwargs:
            raise TypeError(f"{method.__name__} is called remotely: pass its arguments by position")
        self.worker = worker
        self.method: str = method.__name__
        self.args: tuple[Any, ...] = args
        self.part = ""

    def of(self, part: str) -> Self:
        """Name the block or share that it works on, such as "block 3", for people; return it."""
        self.part = part
        return self


def at_worker(handle: ObjectHandle[T]) -> T:
    """Return a handle as an argument of `Call`, with the type of its object at the worker."""
    return cast("T", handle)
