"""From files to a snapshot."""
