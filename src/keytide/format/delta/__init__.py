"""The log of Delta Lake: the metadata of a table for readers of that format."""
