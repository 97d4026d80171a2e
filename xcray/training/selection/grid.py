"""Grid points of a hyper-parameter search: order of solving and start of each point.

The functions are pure.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xcray.errors import ParameterError
from xcray.storage.atomic import sha256_arrays

# Whether larger values are solved earlier (+1), because they regularise more, or later (-1); the
# order of other parameters is that of their values (0). A truncated loss is solved from large s on:
# its problem is convex if s is large, and outliers of a small s would remain outliers.
STRENGTHS = {"lam": 1, "tau": 1, "C": -1, "s": 1}
MAX_POINTS = 1000


class Point(NamedTuple):
    """One setting.

    number: position in the order of solving. start: number of the earlier point that this one
    starts from, or None.
    """

    number: int
    params: dict[str, float]
    start: int | None

    @property
    def key(self) -> str:
        """Return a name derived from the values only."""
        return params_key(self.params)

    @property
    def text(self) -> str:
        """Return the setting as text, for example `lam=0.1 C=1`."""
        return " ".join(f"{name}={value:g}" for name, value in self.params.items())


def params_key(params: Mapping[str, float]) -> str:
    """Return a file name derived from a setting only."""
    return sha256_arrays({"params": json.dumps(dict(params), sort_keys=True)})[:16]


def validate_grid(grid: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    """Return the grid with unique values: lam, tau, C, s, then other parameters as given.

    Values of lam, tau, C and s become float. Raises ParameterError with a fix.
    """
    names = [name for name in STRENGTHS if name in grid]
    out = {name: tuple(dict.fromkeys(map(float, grid[name]))) for name in names}
    out |= {name: tuple(dict.fromkeys(values)) for name, values in grid.items() if name not in out}
    if not out or not all(out.values()):
        raise ParameterError(
            f"give at least one value of {', '.join(out) or 'a parameter'}, "
            "for example --grid lam=0.1,0.01"
        )
    for name, values in out.items():
        bad = [value for value in values if not _is_number(value) or value < 0.0]
        if bad:
            raise ParameterError(f"{name} must be finite and at least 0, not {str(bad[0])[:80]}")
    count = math.prod(map(len, out.values()))
    if count > MAX_POINTS:
        raise ParameterError(
            f"the grid has {count} points, more than {MAX_POINTS}; give fewer values"
        )
    return out


def _is_number(value: object) -> bool:
    """Return whether a value of a grid is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def plan_points(grid: Mapping[str, Sequence[float]]) -> list[Point]:
    """Return all points of the grid, each starting from the nearest earlier one.

    The first point is the most regularised, which is the quickest and sparsest. The next one is
    always the point nearest to a solved one (Prim's tree over distances in decades). Ties are
    ordered from the most regularised on.
    """
    grid = validate_grid(grid)
    names = list(grid)
    settings = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    positions = [_position(params, grid) for params in settings]
    strengths = [
        sum(STRENGTHS.get(name, 0) * x for name, x in zip(names, place, strict=True))
        for place in positions
    ]
    remaining = sorted(range(len(settings)), key=lambda i: (-strengths[i], positions[i]))
    out = [Point(0, settings[remaining[0]], None)]
    nearest = {i: (math.dist(positions[i], positions[remaining[0]]), 0) for i in remaining[1:]}
    while nearest:
        next_index = min(nearest, key=lambda i: (round(nearest[i][0], 9), remaining.index(i)))
        number, (_, start) = len(out), nearest.pop(next_index)
        out.append(Point(number, settings[next_index], start))
        for i, (distance, _) in nearest.items():
            distance_to_new = math.dist(positions[i], positions[next_index])
            if distance_to_new < distance - 1e-9:
                nearest[i] = (distance_to_new, number)
    return out


def _position(
    params: Mapping[str, float], grid: Mapping[str, Sequence[float]]
) -> tuple[float, ...]:
    """Return the coordinates of a setting: decades of each value.

    0 lies a decade below the smallest other value.
    """
    out = []
    for name, value in params.items():
        least = min((other for other in grid[name] if other > 0.0), default=1.0)
        out.append(math.log10(value if value > 0.0 else least / 10.0))
    return tuple(out)
