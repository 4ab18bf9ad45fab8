"""From rows to files: check, split, sort, store."""
