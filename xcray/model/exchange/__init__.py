"""Linear models of other programs: read from and written to their files."""
