"""The measure that a selection maximises: one metric @k, or a sum of several."""

from __future__ import annotations

from collections.abc import Mapping

from xcray.api.options import DEFAULT_MEASURE
from xcray.errors import ParameterError

METRICS = ("P", "recall", "nDCG", "PSP", "PSnDCG")


def parse_measure(text: str) -> list[tuple[str, int]]:
    """Return the metrics of a sum and their k: `P@1+nDCG@5` gives [("P", 1), ("nDCG", 5)].

    Raises ParameterError.
    """
    out = []
    for term in str(text).split("+"):
        metric, _, k = term.strip().partition("@")
        if metric not in METRICS or not (k.isascii() and k.isdecimal() and 1 <= int(k) <= 100):
            raise ParameterError(
                f"the measure {str(text)[:80]!r} must be {', '.join(METRICS)} with @k, "
                f"or a sum of them, for example {DEFAULT_MEASURE}"
            )
        out.append((metric, int(k)))
    return out


def measure_value(measures: Mapping[str, float], select: str, n_labels: int) -> float:
    """Return the sum of the metrics; k is at most the number of labels."""
    terms = parse_measure(select)
    return sum(measures[f"{metric}@{min(k, n_labels)}"] for metric, k in terms)
