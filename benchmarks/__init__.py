"""Benchmarks: `python -m benchmarks.NAME [--data DIR] [--json FILE]`; the last line printed is one
JSON object.
"""
