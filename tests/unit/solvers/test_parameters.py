"""Parameters under their former names: stored specifications and manifests still load."""

import pytest

from xcray.errors import ParameterError
from xcray.solvers import make_solver
from xcray.solvers.parameters import current_names

STORED = {
    "mode": "two",
    "rest_every": 4,
    "finish": 0.1,
    "pairs": 3,
    "patience": 2,
}


def test_a_stored_spec_with_old_names_makes_the_same_solver():
    expected = make_solver(
        "dsmlr",
        {
            "passes": 2,
            "sync_every": 4,
            "lbfgs_switch_tol": 0.1,
            "history": 3,
            "early_stopping_rounds": 2,
        },
    )
    assert make_solver("dsmlr", STORED) == expected
    assert make_solver("dsmlr", {"mode": "both"}).passes == 1
    for name in ("lc", "lbfgs"):
        assert make_solver(name, {"watch_every": 3}).eval_every == 3


def test_current_names_of_a_manifest_equal_those_of_the_solver():
    assert current_names(STORED) == {
        "passes": 2,
        "sync_every": 4,
        "lbfgs_switch_tol": 0.1,
        "history": 3,
        "early_stopping_rounds": 2,
    }
    present = make_solver("ppdsparse", {}).as_dict()
    assert current_names(present) == present


def test_old_and_present_names_together_are_refused():
    with pytest.raises(ParameterError, match="rest_every is the old name of sync_every"):
        make_solver("dsmlr", {"rest_every": 1, "sync_every": 2})


def test_an_old_name_of_another_solver_is_unknown():
    with pytest.raises(ParameterError, match="unknown parameter 'patience'"):
        make_solver("ppdsparse", {"patience": 1})


def test_an_invalid_old_value_is_refused():
    with pytest.raises(ParameterError, match="passes"):
        make_solver("dsmlr", {"mode": "three"})
