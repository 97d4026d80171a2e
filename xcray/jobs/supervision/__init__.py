"""Supervision of jobs: claim, launch, leader election, retention, integrity."""
