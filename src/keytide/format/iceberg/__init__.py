"""Metadata of Apache Iceberg, versions 2 and 3, for its own readers.

Columns have the same ids as in the data files. These begin at 0, and the ids of nested fields
follow from their column's id. The metadata must use the ids that are in the files.
"""
