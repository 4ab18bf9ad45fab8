"""Tables that others keep, read by the upsert contract: primary, watermark and tombstone key.

A definition names where a table lies and which columns are its keys. `sources` opens what lies
there, once for a statement; what it gives are versions of rows, which the kernels of
`keytide.merge` fold into one row per key, as those of Keytide's own tables.
"""
