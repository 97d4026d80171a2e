"""Numba kernels: arrays in, arrays out; no classes, no I/O, no logging. All release the GIL and are cached on disk."""
