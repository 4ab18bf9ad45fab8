"""Tags, branches, and ways back to what a table was."""
