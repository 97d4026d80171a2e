"""The database of the job store: engine, schema, migrations, compatibility, backup."""
