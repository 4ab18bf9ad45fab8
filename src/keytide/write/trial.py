"""Checks definitions before they are stored: refuses what every writer would refuse."""

from __future__ import annotations

from dataclasses import replace

from keytide.format.schema import TableSchema
from keytide.snapshot.live_files import NO_FILES
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.pinned import StoredTable, unmade
from keytide.snapshot.state import TableState
from keytide.write.refusals import check_writable
from keytide.write.task import WriteTask

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
