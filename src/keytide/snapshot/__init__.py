"""A stored table: its metadata, its live files, and its schema with everything derived from it."""
