"""Estimators against the parameters of their solvers."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from xcray import DSMLR, MEMOIR, IndexedSVM, PPDSparse
from xcray.solvers import SOLVERS


@pytest.mark.parametrize("estimator", [PPDSparse, DSMLR, IndexedSVM, MEMOIR])
def test_each_parameter_of_the_solver_is_one_of_the_estimator(estimator: Any) -> None:
    arguments = inspect.signature(estimator).parameters
    solver = SOLVERS[estimator.SOLVER]()
    for field in fields(solver):
        assert arguments[field.name].default == getattr(solver, field.name), field.name
