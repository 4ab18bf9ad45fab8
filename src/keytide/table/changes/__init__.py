"""What happened to a table between two snapshots, as rows with their kinds."""
