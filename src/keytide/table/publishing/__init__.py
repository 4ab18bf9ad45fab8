"""Publishing: a snapshot as others read it, over the same data files."""
