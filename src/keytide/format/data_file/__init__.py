"""Data files, written and read: one module for each file format, behind one protocol.

A data file contains rows sorted by key, at most one per key: the key again under `_KEY_` names,
`_SEQUENCE_NUMBER`, `_VALUE_KIND`, and every column of the table. Without a primary key, it contains
only the columns, with rows in any order.

`RunWriter` writes one sorted table to one or more files. `FileReader` reads rows of a file as a
Polars DataFrame with the columns of the table's *current* schema, and matches columns by field id.
"""

from keytide.format.data_file.file_format import (
    IS_DEAD,
    POSITION,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    ColumnFilter,
    FileFilters,
    physical_schema,
)
from keytide.format.data_file.reader import (
    FORMATS,
    WHOLE_FILE,
    FileReader,
    Span,
    missing_file,
    read_note,
    read_side_by_side,
    read_together,
    spans_of,
    version_in,
)
from keytide.format.data_file.row_groups import (
    Key,
    KeyedFile,
    Place,
    SortedRows,
    begin_footers,
    key_spans,
    read_few,
    read_places,
    row_at,
)
from keytide.format.data_file.writer import RunWriter, local_wall_clock_ms

__all__ = [
    "FORMATS",
    "IS_DEAD",
    "POSITION",
    "SEQUENCE_NUMBER",
    "VALUE_KIND",
    "WHOLE_FILE",
    "ColumnFilter",
    "FileFilters",
    "FileReader",
    "Key",
    "KeyedFile",
    "Place",
    "RunWriter",
    "SortedRows",
    "Span",
    "begin_footers",
    "key_spans",
    "local_wall_clock_ms",
    "missing_file",
    "physical_schema",
    "read_few",
    "read_note",
    "read_places",
    "read_side_by_side",
    "read_together",
    "row_at",
    "spans_of",
    "version_in",
]
