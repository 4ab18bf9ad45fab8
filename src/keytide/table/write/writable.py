"""Which tables this release writes to."""

from __future__ import annotations

from keytide.errors import UnsupportedError
from keytide.format.data_file import WRITABLE
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
    reason = view.kind.why_not_writable(view.options) or _why_not_stored(view.options)
    if reason is not None:
        raise UnsupportedError(f"table {table.name}: this release cannot write to it: {reason}")
    return view


def _why_not_stored(options: TableOptions) -> str | None:
    formats = {keys.FILE_FORMAT: options.file_format}
    if options.changelog_producer != "none":
        changelog_format = options.changelog_file_format or options.file_format
        formats[keys.CHANGELOG_FILE_FORMAT] = changelog_format
    for key, file_format in formats.items():
        if file_format not in WRITABLE:
            return (
                f"'{key}' = {file_format!r} cannot be written, only "
                f"{' and '.join(map(repr, WRITABLE))}; set it to one of them: files of several "
                f"formats may lie in one table"
            )
    return None
