"""Object storage: client, transfer of sealed directories, and their versions."""
