"""Checks of the Helm chart `helm/xcray`: what renders it, what it is held against, what it must
never contain.
"""
