"""Prediction requests: decode, batch, search, encode."""
