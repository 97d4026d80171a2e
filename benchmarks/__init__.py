"""Benchmarks, run as `python -m benchmarks.NAME [--data DIR] [--json FILE]`.

The last line that a benchmark prints is one JSON object.
"""
