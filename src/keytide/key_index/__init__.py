"""Indexes of keys: the location of the current row of each key, without the key itself."""
