"""Training of group solvers whose label blocks rotate over row shards."""
