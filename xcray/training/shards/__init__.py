"""Training of solvers whose label blocks rotate over row shards (family "rotation")."""
