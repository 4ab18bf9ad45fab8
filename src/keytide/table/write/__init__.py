"""From rows to files: check, cut, sort, store."""
