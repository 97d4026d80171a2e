"""Gates: the least differences of measures that a new model must reach to replace an old one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from xcray.errors import ParameterError, excerpt

CONDITION: Final = re.compile(
    r"\s*((?:P|nDCG|recall|F1|PSP|micro-F1|macro-F1)@([1-9]\d{0,3}))"
    r"\s*>=\s*([-+]?\d+(?:\.\d+)?)\s*"
)


class Condition(NamedTuple):
    """The least difference of a measure, new minus old, in points. k: of the measure."""

    measure: str
    k: int
    least: float


def parse_gate(text: str, max_k: int = 9999) -> list[Condition]:
    """Return the conditions of a gate such as "P@1 >= -0.2, PSP@5 >= 0".

    max_k: labels of the model. Raises ParameterError.
    """
    conditions = []
    for part in text.split(","):
        found = CONDITION.fullmatch(part)
        if found is None:
            raise ParameterError(
                f"{excerpt(part)!r} is not a condition of a gate: write a measure (P, nDCG, "
                "recall, F1, PSP, micro-F1, macro-F1) at k and the least difference in points, "
                "such as P@1 >= -0.2"
            )
        if int(found[2]) > max_k:
            raise ParameterError(f"the gate has {found[1]}, and the model {max_k:,} labels")
        conditions.append(Condition(found[1], int(found[2]), float(found[3])))
    return conditions


def ranks_of(gate: Sequence[Condition]) -> list[int]:
    """Return the k to measure at: 1, 3, 5 and those of the gate."""
    return sorted({1, 3, 5, *(each.k for each in gate)})


def check_gate(gate: Sequence[Condition], differences: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions with what was measured, and whether all hold ("passed"); JSON.

    differences: to the old model, by measure, as of an evaluation. Raises ParameterError for a
    measure of more labels than the models have.
    """
    conditions = []
    for each in gate:
        if each.measure not in differences:
            raise ParameterError(
                f"there is no measure {excerpt(each.measure)} to compare: use one of "
                + ", ".join(differences)
            )
        points = 100.0 * differences[each.measure]["difference"]
        checked = {"measure": each.measure, "least": each.least, "difference": points}
        conditions.append({**checked, "passed": bool(points >= each.least)})
    return {"gate": conditions, "passed": all(each["passed"] for each in conditions)}
