"""The model: its arrays, its directory format, the registry of its versions."""
