"""Verifies everything that is stored in a table: every file against its metadata."""
