"""Alembic steps that migrate an older store, run by `upgrade` in one transaction each.

Each step declares in `oldest` the oldest program that can use its result, by the schema revision of
that program. A step that only adds (tables, nullable or defaulted columns, indexes) names an
earlier program, and old programs continue while it runs. A step that removes, renames, or changes
the meaning of a column names a program that does not use it, or itself. So changing what exists
takes two releases: add and use both, then remove. `takes` lists the tables and columns
(`table.column`) that no program from `oldest` on uses. `tests/jobs/database/test_migrations.py`
verifies these declarations.

A step with `in_transaction` False runs outside any transaction on PostgreSQL. It builds indexes of
possibly large tables with `online.create_index`. Published steps never change. They name their
columns themselves and never use the tables of `schema.py`, which describe only the present.
"""
