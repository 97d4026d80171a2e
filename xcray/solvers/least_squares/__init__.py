"""Least squares and its generalisations, solved with the second moments of the features."""
