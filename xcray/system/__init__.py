"""The machine: cores, memory, processes, units of size."""
