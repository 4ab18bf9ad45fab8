"""A table as it is stored: metadata, live files, and one schema with what reads them."""
