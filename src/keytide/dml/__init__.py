"""Row-level DELETE, UPDATE and MERGE: an engine without storage, over connectors with storage.

`spi` is the interface between the two, with the names of Trino's connector interface. `execution`
runs changes. `memory`, `keyed` and others are connectors.
"""
