"""How a store of an older xcray becomes one of this: Alembic's steps in `versions/`, run by `upgrade` in one transaction.

Published steps never change; they name their columns and never the tables of `schema.py`, which say only how things are now.
"""
