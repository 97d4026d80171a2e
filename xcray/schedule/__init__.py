"""Schedules: pure state machines that turn events into commands, without threads, clocks or Ray."""
