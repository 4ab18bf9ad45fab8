"""Which tables this release writes to."""

from __future__ import annotations

from keytide.errors import UnsupportedError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView

__all__ = ["writable_view"]


def writable_view(table: StoredTable) -> TableView:
    """The newest schema of a table, to write through.

    Raises `UnsupportedError` for a table that this release must not append to, with the reason:
    writing into it would lose the uniqueness of keys or a reader's changes.
    """
    view = table.view(table.schema)
    reason = _why_not_writable(view.schema, view.options)
    if reason is not None:
        raise UnsupportedError(f"table {table.name}: this release cannot write to it: {reason}")
    return view


def _why_not_writable(schema: TableSchema, options: TableOptions) -> str | None:
    if not schema.primary_keys:
        return "it has no primary key. Create one with a primary key, or append with another tool"
    if options.bucket < 1:
        kind = "dynamic" if options.bucket == -1 else "postpone"
        return (
            f"'{keys.BUCKET}' = '{options.bucket}' ({kind} buckets) allows one writer at a time "
            "and an index that only its owner may keep. Use a fixed number of buckets"
        )
    if options.file_format != "parquet":
        return f"'{keys.FILE_FORMAT}' = {options.file_format!r}; only 'parquet' can be written"
    if options.changelog_producer == "input":
        return f"'{keys.CHANGELOG_PRODUCER}' = 'input' asks every writer for changelog files"
    if options.deletion_vectors_enabled:
        return f"'{keys.DELETION_VECTORS_ENABLED}' hides rows until a compaction, which it lacks"
    return None
