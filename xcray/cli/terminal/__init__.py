"""Terminal input and output: tables, progress, interrupts."""
