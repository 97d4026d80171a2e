"""Readers, the data set directory, text features, splits and synthetic sets."""
