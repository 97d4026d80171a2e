"""How a store of an older xcray becomes one of this: Alembic's steps in `versions/`, run by `upgrade`, one transaction each.

Each says in `oldest` which program may go on working beside it, by the revision of that program's own store. A step that only adds
(tables, columns that may be null or that the database fills, indexes) names one before itself, and old programs serve on while it
runs; one that takes away, renames, or gives a column another meaning names a program that does not use what goes, or itself. So a
change of what is there takes two releases: add and use both, then take away. `takes` names the tables and columns (`table.column`)
that no program from `oldest` on uses. `tests/jobs/database/test_migrations.py` holds steps to what they say.

A step for which `in_transaction` is False runs outside of any on PostgreSQL: indexes of tables that may be long, by `online.index`.
Published steps never change; they name their columns and never the tables of `schema.py`, which say only how things are now.
"""
