"""MEMOIR beside LIBLINEAR on single-label data sets."""
