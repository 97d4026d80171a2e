"""Least-squares solvers on MNIST: test error and processor seconds."""
