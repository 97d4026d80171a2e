"""Commands that build data sets, train, tune and edit models."""
