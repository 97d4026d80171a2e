"""Which points of a hyper-parameter path to solve, in which order, and from which solved one each starts. Pure."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xcray.errors import ParameterError
from xcray.storage.atomic import sha256_arrays

# What a path may run over: parameters of a solver, and whether a larger value regularises more (+1) or less (-1).
PATH_PARAMS = {"lam": 1, "tau": 1, "C": -1}
MOST_POINTS = 1000


class Point(NamedTuple):
    """One setting. number: its place in the order of solving; start: the number of the earlier point it starts from, or None."""

    number: int
    params: dict[str, float]
    start: int | None

    @property
    def key(self) -> str:
        """A name made of the values alone."""
        return key_of(self.params)

    @property
    def said(self) -> str:
        """`lam=0.1 C=1`."""
        return " ".join(f"{name}={value:g}" for name, value in self.params.items())


def rescale(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """What duals of one setting are multiplied by to start another: with C they grow by about its square root.

    Between C (in proportion, with losses as they are) and 1 (losses shrink as much as C grows): a middle that saved time on one
    small set and neither saved nor cost on a larger one. lam and tau leave them as they are.
    """
    return math.sqrt(after["C"] / before["C"]) if "C" in before else 1.0


def key_of(params: Mapping[str, float]) -> str:
    """A file name made of a setting alone."""
    return sha256_arrays({"params": json.dumps(dict(params), sort_keys=True)})[:16]


def checked_grid(grid: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    """The grid with each value once, in the order of `PATH_PARAMS`. Raises ParameterError with the mend."""
    if unknown := sorted(set(grid) - set(PATH_PARAMS)):
        raise ParameterError(
            f"a path can't run over {unknown[0][:80]!r}; it runs over {', '.join(PATH_PARAMS)}"
        )
    out = {
        name: tuple(dict.fromkeys(float(value) for value in grid[name]))
        for name in PATH_PARAMS
        if name in grid
    }
    if not out or not all(out.values()):
        raise ParameterError(
            f"give at least one value of {', '.join(out) or 'lam, tau or C'}, for example --lam 0.1 0.01"
        )
    for name, values in out.items():
        bad = [value for value in values if not math.isfinite(value) or value < 0.0]
        if bad:
            raise ParameterError(f"{name} must be finite and at least 0, not {bad[0]}")
    count = math.prod(map(len, out.values()))
    if count > MOST_POINTS:
        raise ParameterError(
            f"the grid has {count} points, more than {MOST_POINTS}; give fewer values"
        )
    return out


def plan(grid: Mapping[str, Sequence[float]]) -> list[Point]:
    """All points of the grid, each starting from the nearest one before it.

    The first is the most regularised, which is the quickest and sparsest. Then always the point that is nearest to a solved
    one comes next (Prim's tree over distances in decades); equally near ones from the most regularised on.
    """
    grid = checked_grid(grid)
    names = list(grid)
    settings = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    places = [_place(params, grid) for params in settings]
    strength = [
        sum(PATH_PARAMS[name] * x for name, x in zip(names, place, strict=True)) for place in places
    ]
    left = sorted(range(len(settings)), key=lambda i: (-strength[i], places[i]))
    out = [Point(0, settings[left[0]], None)]
    nearest = {i: (math.dist(places[i], places[left[0]]), 0) for i in left[1:]}
    while nearest:
        chosen = min(nearest, key=lambda i: (round(nearest[i][0], 9), left.index(i)))
        number, (_, start) = len(out), nearest.pop(chosen)
        out.append(Point(number, settings[chosen], start))
        for i, (distance, _) in nearest.items():
            new = math.dist(places[i], places[chosen])
            if new < distance - 1e-9:
                nearest[i] = (new, number)
    return out


def _place(params: Mapping[str, float], grid: Mapping[str, Sequence[float]]) -> tuple[float, ...]:
    """Where a setting lies: decades of each value; 0 lies a decade below the smallest other value."""
    out = []
    for name, value in params.items():
        least = min((other for other in grid[name] if other > 0.0), default=1.0)
        out.append(math.log10(value if value > 0.0 else least / 10.0))
    return tuple(out)
