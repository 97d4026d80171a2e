"""Axes of a panel: positions of values, and round numbers to mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MAX_DECADES: Final = 6  # decades that are all marked on a logarithmic axis
STEPS: Final = (1.0, 2.0, 5.0, 10.0)


class Axis(NamedTuple):
    """An axis from `low` to `high`.

    names: names of the positions 0, 1, 2 and so on, instead of numbers.
    """

    label: str
    low: float
    high: float
    is_log: bool = False
    names: tuple[str, ...] = ()

    def share(self, value: float) -> float:
        """Return the position of a value: 0 at `low`, 1 at `high`; a value outside is cut."""
        if self.is_log:
            low, high, at = (math.log(each) for each in (self.low, self.high, max(value, self.low)))
        else:
            low, high, at = self.low, self.high, value
        return min(1.0, max(0.0, (at - low) / (high - low)))

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return the values to mark, about `count` of them, with their texts."""
        if self.names:
            return [(float(i), name) for i, name in enumerate(self.names)]
        values = self._round_values(count)
        return [(each, short_number(each)) for each in values if self.low <= each <= self.high]

    def text(self, value: float) -> str:
        """Return the name or the number of a value."""
        is_named = self.names and 0 <= round(value) < len(self.names)
        return self.names[round(value)] if is_named else exact_number(value)

    def _round_values(self, count: int) -> Sequence[float]:
        """Return round numbers: decades of a logarithmic axis, otherwise multiples of a step."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            each = max(1, math.ceil((last - first + 1) / min(count, MAX_DECADES)))
            if math.log10(self.high / self.low) < 2:
                return [d * 10.0**power for power in range(first - 1, last + 1) for d in (1, 2, 5)]
            return [10.0**power for power in range(first, last + 1, each)]
        step = _round_step((self.high - self.low) / count)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * i for i in range(first, last + 1)]


def axis_around(
    label: str,
    values: Iterable[float],
    *,
    low: float | None = None,
    high: float | None = None,
    is_log: bool = False,
    pad: float = 0.03,
) -> Axis:
    """Return an axis around the finite values, positive ones if it is logarithmic.

    low, high: fixed ends. pad: space at the other ends, as a share of the length.
    """
    known = [each for each in values if math.isfinite(each) and (each > 0 or not is_log)]
    least = low if low is not None else min(known, default=0.1 if is_log else 0.0)
    most = high if high is not None else max(known, default=1.0)
    if is_log:
        factor = max(most / least, 1.5) ** pad
        least, most = (least if low is not None else least / factor), most * factor
        return Axis(label, least, max(most, 1.5 * least), is_log=True)
    length = (most - least) or abs(most) or 1.0
    return Axis(
        label,
        least if low is not None else least - pad * length,
        most if high is not None else most + pad * length,
    )


def named_axis(label: str, names: Sequence[str]) -> Axis:
    """Return an axis of names at 0, 1, 2 and so on."""
    return Axis(label, -0.5, max(len(names), 1) - 0.5, names=tuple(names))


def short_number(value: float) -> str:
    """Return 0.25, 950, 1.2k, 12k, 3M."""
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= least:
            return f"{value / least:.3g}{unit}"
    return f"{value:.3g}"


def exact_number(value: float) -> str:
    """Return a number with up to four significant digits; integers below 10^15 in full."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def _round_step(length: float) -> float:
    """Return 1, 2 or 5 times a power of ten, not below `length`."""
    power = 10.0 ** math.floor(math.log10(max(length, 1e-300)))
    return power * next(step for step in STEPS if step * power >= length * (1 - 1e-9))
