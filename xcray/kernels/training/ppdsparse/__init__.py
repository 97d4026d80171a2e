"""The kernel of PPDSparse: `advance.py` runs the phases of a class, made of the other files."""
