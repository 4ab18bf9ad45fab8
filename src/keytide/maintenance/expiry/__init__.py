"""Expiry: deletes what is too old, and its files."""
