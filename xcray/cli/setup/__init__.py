"""Commands that check and prepare an installation."""
