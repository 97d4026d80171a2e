"""Durable files, and tables and matrices in Arrow files."""
