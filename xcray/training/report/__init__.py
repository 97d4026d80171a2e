"""Reports of a finished training: documents, tables, pictures, timeline."""
