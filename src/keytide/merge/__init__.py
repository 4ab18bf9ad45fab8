"""What the versions of one key become: pure functions over Polars frames, no I/O.

`order` sorts versions, `windows` cuts overlapping sorted runs into key ranges that fit in
memory, `touched` merges only the keys that occur more than once, and each merge engine folds the
sorted versions of a key into one row. `engine` says what the rest may ask of an engine, `engines`
has one line for each.
"""
