"""MEMOIR and Crammer-Singer SVMs on data sets with one label per row."""
