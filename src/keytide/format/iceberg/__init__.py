"""Apache Iceberg's metadata, versions 2 and 3: what it says of a table to its own readers.

Columns go by the ids that they have in data files. These begin at 0, and parts of nested ones have
ids that follow from their column's: what the files say, the metadata has to say.
"""
