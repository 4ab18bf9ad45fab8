"""Row-level DELETE, UPDATE and MERGE: an engine that knows no storage, over connectors that do.

`spi` is the interface between the two, in the words of Trino's connector interface. `execution`
carries changes out; `memory`, `keyed` and others are connectors.
"""
