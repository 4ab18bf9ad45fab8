"""The on-disk format of a table: schemas, snapshots, manifests, data files, buckets, paths.

Bytes and names only: nothing here knows a catalog, a transaction or an engine.
"""
