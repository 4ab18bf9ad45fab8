"""Converts values from users to the exact types of columns."""
