"""Selection of solver parameters on held-out training rows."""
