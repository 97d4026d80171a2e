"""Toy solvers, as shown in docs/add_a_solver.md."""

from tests.support.toy_solvers.centroid import CentroidSolver
from tests.support.toy_solvers.gradient import GradientSolver
from xcray.solvers import register_solver

TOYS = {
    "toy-centroid": CentroidSolver,
    "toy-gradient": GradientSolver,
}
for _name, _solver in TOYS.items():
    register_solver(_name, _solver)
