"""Gates are read and checked."""

from __future__ import annotations

import pytest

from xcray.api.gate import Condition, check_gate, parse_gate, ranks_of
from xcray.errors import ParameterError


def test_gates_are_read_or_refused() -> None:
    gate = [Condition("P@1", 1, -0.2), Condition("micro-F1@10", 10, 3.0)]
    assert parse_gate("P@1 >= -0.2, micro-F1@10>=+3") == gate
    assert ranks_of(gate) == [1, 3, 5, 10]
    for text in ("", "P@1", "P@1 > 0", "P@0 >= 1", "P@1 >= nan", "P@1 >= 0,", "P >= 0", "X@1 >= 0"):
        with pytest.raises(ParameterError, match="write a measure"):
            parse_gate(text)
    with pytest.raises(ParameterError, match="P@5, and the model 4 labels"):
        parse_gate("P@5 >= 0", 4)


def test_a_gate_is_passed_if_all_differences_are_large_enough() -> None:
    differences = {"P@1": {"difference": -0.002}, "P@5": {"difference": 0.01}}
    found = check_gate(parse_gate("P@1 >= -0.2, P@5 >= 1.5"), differences)
    assert [each["passed"] for each in found["gate"]] == [True, False]
    assert not found["passed"]
    assert check_gate(parse_gate("P@1 >= -0.2"), differences)["passed"]
    assert check_gate([], {}) == {"gate": [], "passed": True}
    with pytest.raises(ParameterError, match="no measure P@9 to compare: use one of P@1, P@5"):
        check_gate(parse_gate("P@9 >= 0"), differences)
