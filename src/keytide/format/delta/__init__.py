"""Delta Lake's log: what it says of a table, for readers who know that format."""
