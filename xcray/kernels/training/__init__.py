"""Kernels of the solvers."""
