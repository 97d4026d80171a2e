"""When exact gradients have taken over: every block's memory, and the point that the next stretch looks at.

A memory is made where its block came to rest, and stays on that node. The driver sees inner products and coefficients only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from xcray.solvers.quasi_newton import coefficients, total
from xcray.workers.rpc import Errand, errands, made
from xcray.workers.worker_group import Handle, Team

Held = list[tuple[str, Handle]]  # who made each thing, and its handle


class Trial(NamedTuple):
    """Where the blocks are: at `length` times the direction from the point that was accepted last, along which the slope was
    `slope`. length 0: gradients are still to be gathered for the first time."""

    length: float
    slope: float


ENTERING: Final = Trial(0.0, 0.0)


class Turn(NamedTuple):
    """What came of a turn: memories and blocks, one of each for every block, and where they are."""

    memories: Held
    blocks: Held
    trial: Trial


def enter(team: Team, blocks: Held) -> Turn:
    """Begin, with blocks that have gathered their first gradients."""
    return _turned(team, _made(team, [Errand(worker, "begin", block) for worker, block in blocks]))


def accept(team: Team, memories: Held, blocks: Held) -> Turn:
    """Remember the point that blocks are at, with the gradients they have gathered there, and go on from it."""
    pairs = zip(memories, blocks, strict=True)
    return _turned(
        team,
        _made(
            team,
            [Errand(worker, "remember", memory, block) for (worker, memory), (_, block) in pairs],
        ),
    )


def retry(team: Team, memories: Held, trial: Trial, length: float) -> Turn:
    """Another point of the same direction."""
    return Turn(memories, _moved(team, memories, length), trial._replace(length=length))


def _turned(team: Team, memories: Held) -> Turn:
    """Take the next direction, and go all of it."""
    asks = [Errand(worker, "products", memory) for worker, memory in memories]
    coefs, slope = coefficients(total([answer.told for answer in errands(team, asks)]))
    aimed = _made(team, [Errand(worker, "aim", memory, coefs) for worker, memory in memories])
    return Turn(aimed, _moved(team, aimed, 1.0), Trial(1.0, slope))


def _moved(team: Team, memories: Held, length: float) -> Held:
    """Blocks at a point of their direction."""
    return _made(team, [Errand(worker, "move", memory, length) for worker, memory in memories])


def _made(team: Team, asks: Sequence[Errand]) -> list[tuple[str, Any]]:
    """What errands made."""
    return [(answer.worker, made(answer.bulk)) for answer in errands(team, asks)]
