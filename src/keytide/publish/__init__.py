"""Publishing: makes a snapshot readable in other formats, over the same data files."""
