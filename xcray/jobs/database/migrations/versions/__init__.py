"""One file a step, named for what it brings."""
