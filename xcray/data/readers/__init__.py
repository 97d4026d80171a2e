"""Readers of svmlight, XC, CSV, JSON lines and Parquet, with positions and error codes."""
