"""Labels of an existing model: added, removed, merged, renamed, retrained."""
