"""Row-level DELETE, UPDATE and MERGE: an engine without storage, over connectors with storage.

`spi` is the interface between the two, with the names of Trino's connector interface. `engine` runs
changes. `memory`, `keyed_table`, `adbc` and others are connectors.
"""
