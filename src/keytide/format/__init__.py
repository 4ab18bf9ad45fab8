"""The on-disk format of a table: schemas, snapshots, manifests, data files, buckets, paths.

Only bytes and names: nothing here depends on a catalog, a transaction or an engine.
"""
