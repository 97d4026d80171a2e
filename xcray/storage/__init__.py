"""Durable storage: atomic files and directories, and Arrow tables and matrices."""
