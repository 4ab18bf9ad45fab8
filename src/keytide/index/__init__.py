"""Indexes of keys: where the current row of each key lies, without the key itself."""
