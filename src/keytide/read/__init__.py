"""From files to rows: plan, read, merge."""
