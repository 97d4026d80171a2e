"""Schedules: pure state machines. Events in, commands out; no threads, no clocks, no Ray."""
