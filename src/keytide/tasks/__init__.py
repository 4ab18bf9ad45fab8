"""Picklable tasks: what runs them, and how many rows the running one has written."""
