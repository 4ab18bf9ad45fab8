"""Tables: reading, writing and committing them.

From low to high: `values`, `definition` and `conditions` check what users give; `state` is a table
as it is stored; `read` and `write` go from files to rows and back; `commit` is the one place where
a snapshot is made. `catalog`, `scans` and `local_writes` are what the layers above call.
"""
