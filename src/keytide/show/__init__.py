"""Pictures of tables and plans: pure functions from values to SVG and HTML."""
