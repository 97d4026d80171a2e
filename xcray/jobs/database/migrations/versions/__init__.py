"""Migration steps: one file per step, named for what it adds."""
