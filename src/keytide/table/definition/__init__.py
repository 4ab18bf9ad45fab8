"""What a table is: its columns, keys and options, and how they may change."""
