"""Everything that changes a table on request or after a write, but not its rows."""
