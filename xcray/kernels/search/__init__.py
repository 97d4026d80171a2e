"""Kernels of the exact top-k search."""
