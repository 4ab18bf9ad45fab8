"""Conditions over the columns of a table."""
