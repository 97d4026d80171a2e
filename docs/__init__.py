"""Programs of the documentation site, see mkdocs.yml."""
