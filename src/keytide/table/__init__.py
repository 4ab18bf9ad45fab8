"""Tables: reading, writing and committing them.

`metadata` finds and caches what is stored; `live_files` is one snapshot's files as a value;
`predicate` and `plan` decide what a scan reads, without reading data; `read` and `write` carry
tasks out; `commit` is the one place where a snapshot is made; `table` and `lake` are what users
hold.
"""
