"""Reports of a finished training: figures, tables, pictures, timeline."""
