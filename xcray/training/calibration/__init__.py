"""Probabilities from scores, by isotonic regression."""
