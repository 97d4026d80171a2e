"""MEMOIR: multi-class SVM by stochastic gradient over the most violating classes."""
