"""Which tables this release can write to."""

from __future__ import annotations

from keytide.definition.kind import why_in_both_partitions
from keytide.errors import UnsupportedError
from keytide.gate.gate import gate_of
from keytide.options import keys
from keytide.snapshot.stored import StoredTable
from keytide.snapshot.view import TableView

__all__ = ["check_writable", "writable_view"]


def writable_view(table: StoredTable) -> TableView:
    """The view of a table's latest schema, for writing.

    Raises `UnsupportedError`, with the reason, for a table that this release must not append to: a
    write would make keys no longer unique, or would lose changes for a reader.
    """
    view = table.view(table.schema)
    check_writable(view)
    return view


def check_writable(view: TableView) -> None:
    """Raise `UnsupportedError` like `writable_view`."""
    reason = (
        view.files.why_not_writable
        or gate_of(view.schema, view.options).why_not_writable
        or view.kind.why_not_writable(view.options)
        or _why_keys_would_move(view)
        or _why_hidden(view)
    )
    if reason is not None:
        raise UnsupportedError(f"table {view.name}: this release cannot write to it: {reason}")


def _why_hidden(view: TableView) -> str | None:
    """Why rows would stay where readers of deletion vectors do not look. None if they would not."""
    if not view.options.deletion_vectors_enabled or not view.kind.keeps_versions:
        return None
    hides = f"'{keys.DELETION_VECTORS_ENABLED}' hides rows until a compaction"
    kept = view.engine.why_kept_apart
    return None if kept is None else f"{hides}, and here they merge nothing: {kept}"


def _why_keys_would_move(view: TableView) -> str | None:
    if view.moves_keys and set(view.schema.partition_keys) & set(view.schema.primary_keys):
        return "its primary key has some of its partition columns and lacks others"
    if view.moves_keys and view.options.changelog_producer == "input":
        return (
            f"'{keys.CHANGELOG_PRODUCER}' = 'input' keeps rows as they came, and keys that move "
            f"between partitions are written otherwise; set it to 'lookup' or 'full-compaction'"
        )
    return why_in_both_partitions(view.schema, view.options)
