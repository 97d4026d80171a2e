"""Plot of the errors of an approximate search by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xcray.plots import BLUE, figure_page


def draw_oracle(path: Path, rounds: Sequence[Mapping[str, Any]], name: str, note: str) -> None:
    """Plot the margin error and the agreement with the exact search against the round.

    rounds: see `xcray.solvers.memoir.oracle.OracleErrors`.
    """
    numbers = [each["round"] for each in rounds]
    with figure_page(path, 10, 4.0, f"What the approximate search missed · {name}", note) as figure:
        errors, agreement = figure.subplots(1, 2)
        for key, label, style in (
            ("mean", "mean", "-"),
            ("p95", "95 % of the samples", "--"),
            ("largest", "largest", ":"),
        ):
            errors.plot(numbers, [each[key] for each in rounds], style, color=BLUE, label=label)
        errors.set_ylabel("margin error")
        errors.legend()
        agreement.plot(numbers, [100.0 * each["agreement"] for each in rounds], color=BLUE)
        agreement.set_ylabel("samples with the exact rival (%)")
        agreement.set_ylim(0.0, 101.0)
        for axis in (errors, agreement):
            axis.set_xlabel("round")
