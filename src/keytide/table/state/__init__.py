"""A stored table: its metadata, its live files, and one schema with everything that depends on
it.
"""
