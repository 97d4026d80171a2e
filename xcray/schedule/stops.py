"""What ways through the shards have in common: stops, and who lives where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from xcray.errors import ParameterError


class Stop(NamedTuple):
    """Where a block goes next: consecutive shards of one worker, in the order in which it passes them."""

    worker: str
    block: int
    shards: tuple[int, ...]
    lap: int


class Route(Protocol):
    """Which block may go where. A worker makes its stops in the order they are taken, so that what is taken counts as before
    what is taken later at the same worker; a block goes on only when it has passed."""

    def take(self, worker: str) -> Stop | None:
        """The next stop at a worker that has room for one; None while there is none."""

    def passed(self, stop: Stop) -> Sequence[str]:
        """A block has passed; the workers that may have a next stop now, those to look at first first."""

    def state(self) -> dict[str, Any]:
        """Laps done by each block and each shard, JSON-ready."""

    def check(self) -> None:
        """Raises AssertionError when the books do not agree with each other."""


def stations(homes: Sequence[str]) -> dict[str, range]:
    """The shards of each worker, from homes[s]: the worker of shard s. Raises ParameterError when they are not consecutive."""
    out: dict[str, range] = {}
    for shard, worker in enumerate(homes):
        known = out.get(worker)
        if known is not None and known.stop != shard:
            raise ParameterError(
                f"{worker} is home of shards {known.start}..{known.stop - 1} and of {shard}; give it consecutive ones"
            )
        out[worker] = range(shard if known is None else known.start, shard + 1)
    return out


def require(holds: bool, law: str) -> None:
    """A law of the schedule; raises AssertionError when it is broken."""
    if not holds:
        raise AssertionError(law)
