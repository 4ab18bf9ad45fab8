"""Pictures of facts: pure functions from values to SVG and HTML, for notebooks and pages."""
