"""Fewer and larger files with the same rows."""
