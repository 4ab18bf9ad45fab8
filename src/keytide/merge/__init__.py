"""Merging of the versions of a key: pure functions over Polars frames, without I/O.

`order` sorts versions. `windows` cuts overlapping sorted runs into key ranges that fit in memory.
`touched` merges only keys that occur more than once. Each merge engine merges the sorted versions
of a key into one row. `engine` is the interface of engines, and `engines` lists them.
"""
