"""Tables: reading, writing and committing them.

From low to high: `values`, `definition` and `conditions` check the input of users. `state` is a
stored table. `read` and `write` convert files to rows and back. `commit` is the only package that
creates snapshots. `catalog`, `scans` and `local_writes` are called by the layers above.
"""
