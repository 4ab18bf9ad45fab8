"""What users hold: a lake, its tables, scans of them. Thin; each hands the work down."""
