"""Checks definitions before they are stored: refuses what every writer would refuse."""

from __future__ import annotations

from dataclasses import replace

from keytide.format.schema import TableSchema
from keytide.table.state.live_files import NO_FILES
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.pinned import unmade
from keytide.table.state.state import TableState
from keytide.table.state.stored import StoredTable
from keytide.table.write.task import WriteTask
from keytide.table.write.writable import check_writable

__all__ = ["try_definition"]


def try_definition(metadata: TableMetadata, definition: TableSchema) -> None:
    """Write no rows into a table with that definition, as if it were new. The store is not used.

    Raises the same errors as a write of rows.
    """
    first = replace(definition, id=0)
    view = StoredTable.of(unmade(metadata, first)).view(first)
    check_writable(view)
    no_rows = first.arrow_schema().empty_table()
    WriteTask.on(TableState(view, NO_FILES, ())).feed([no_rows], 0)
