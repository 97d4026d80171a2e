"""What ways through the shards have in common: visits, the contract of a way, and who lives where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from xcray.errors import ParameterError


class Visit(NamedTuple):
    """Let `block` pass `shards`, in this order, at `worker`, in lap `lap` of the stretch (from 0). `id` counts from 0."""

    id: int
    worker: str
    block: int
    shards: tuple[int, ...]
    lap: int


class Route(Protocol):
    """Which block may go where. A worker makes its visits in the order they are taken, so what is taken at a worker counts there
    as before what is taken later; a block goes on only when its visit has passed."""

    def take(self, worker: str, number: int) -> Visit | None:
        """The next visit of a worker that has room for one, with this number as its id; None while there is none."""

    def passed(self, visit: Visit) -> Sequence[str]:
        """A visit is done; the workers that may have a next one now, in the order in which to ask them."""

    def state(self) -> dict[str, Any]:
        """Laps done by each block (block_laps) and taken to the end by each shard (shard_laps), JSON-ready."""

    def check(self, under_way: Sequence[Visit]) -> None:
        """Raises AssertionError when the books do not agree with each other and with the visits under way."""


def stations(homes: Sequence[str]) -> dict[str, range]:
    """The shards of each worker, from homes[s]: the worker of shard s. Raises ParameterError when they are not consecutive."""
    out: dict[str, range] = {}
    for shard, worker in enumerate(homes):
        known = out.get(worker)
        if known is not None and known.stop != shard:
            raise ParameterError(
                f"{worker} is the home of shards {known.start}..{known.stop - 1} and of {shard}: not consecutive"
            )
        out[worker] = range(shard if known is None else known.start, shard + 1)
    return out


def require(holds: bool, law: str) -> None:
    """A law of the schedule; raises AssertionError when it is broken."""
    if not holds:
        raise AssertionError(law)
