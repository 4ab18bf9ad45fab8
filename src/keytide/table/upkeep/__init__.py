"""What keeps a table in shape."""
