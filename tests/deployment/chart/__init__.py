"""Checks of the Helm chart `helm/xcray`: rendering, schemas and simulated clusters."""
