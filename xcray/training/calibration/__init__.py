"""Calibration: probabilities from scores by isotonic regression."""
