"""Selection of parameters on held-out training rows: one evaluator, two strategies."""
