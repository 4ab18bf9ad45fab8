"""What changed in a table between two snapshots, as rows with their kinds."""
