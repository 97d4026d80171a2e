"""Metric forest: an index of the rows of a data set, in its directory or in memory."""
