"""What the command line, the service and the client have in common: options and replies."""
