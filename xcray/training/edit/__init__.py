"""Edit the labels of an existing model: add, remove, merge, rename, retrain."""
