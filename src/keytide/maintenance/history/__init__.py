"""Tags, branches, and ways to go back to earlier states of a table."""
