"""What defines a table: its columns, keys and options, and how they may change."""
