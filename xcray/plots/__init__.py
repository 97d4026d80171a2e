"""Pictures of trainings, models and data sets as SVG, for the console, the CLI and notebooks."""
