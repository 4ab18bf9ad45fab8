"""Maintenance of tables."""
