"""External tables, merged by the upsert contract: primary, watermark and tombstone key.

A definition says where a table is stored and which columns are its keys. `sources` opens the table
once per statement. It returns versions of rows, which `keytide.merge` merges into one row per key,
as in Keytide's own tables.
"""
