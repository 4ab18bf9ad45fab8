"""Extends tables for new rows: first their definition, then the rows.

The definition is a separate file, which is written first. A process that dies between the two
leaves a table with columns that are still NULL, or with wider types than needed. The write can then
be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from keytide.catalogs.alter import alter_as_needed
from keytide.commit.author import Author
from keytide.definition.schema_evolution import SchemaChange, growth
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind
from keytide.options import TableOptions
from keytide.snapshot.pinned import PinnedTable, StoredTable
from keytide.write.input_rows import complete_rows, padded, typed_rows, wider_table
from keytide.write.partition_spec import partition_to_replace
from keytide.write.refusals import writable_view

__all__ = ["grown", "grown_for"]


def grown_for(
    table: StoredTable,
    data: Any,
    author: Author | None = None,
    partition: Mapping[str, Any] | None = None,
) -> tuple[PinnedTable, pa.Table]:
    """A table that accepts all columns of some rows, and the rows converted for it.

    `data` is the same as in `Table.write`, except for Spark DataFrames. `partition` is what the
    rows replace. Raises like `Table.write`, with nothing changed, for rows that the table could not
    accept even then.
    """
    pinned = table.pinned()
    spec = partition_to_replace(writable_view(pinned), partition)
    given = wider_table(data, pinned.schema, table.name)
    given = given if spec is None else spec.filled(given)

    def check(schema: TableSchema) -> None:
        options = TableOptions.parse(schema.options)
        rows = typed_rows(padded(given, schema, options), schema, options, table.name)
        if not options.counts_row_errors:
            complete_rows(rows, schema, options, table.name)

    pinned = grown(pinned, partial(growth, columns=given.schema, table=table.name), check, author)
    return pinned, padded(given, pinned.schema, TableOptions.parse(pinned.schema.options))


def grown(
    pinned: PinnedTable,
    needed: Callable[[TableSchema], Sequence[SchemaChange]],
    check: Callable[[TableSchema], None] = lambda _: None,
    author: Author | None = None,
) -> PinnedTable:
    """The table once its definition needs no more changes.

    `needed` returns the missing changes of a definition. `check` raises an error if something would
    not fit. It is called before a definition is stored. If the author has committed before, nothing
    is changed. Raises the errors of these functions and of `alter_table`.
    """
    writable_view(pinned)  # or nothing must be changed
    if not needed(pinned.schema) or _is_done(pinned, author):
        return pinned
    alter_as_needed(pinned.live.metadata, needed, check)
    return pinned.live.pinned()


def _is_done(table: PinnedTable, author: Author | None) -> bool:
    if author is None:
        return False
    newest = table.metadata.latest_snapshot()
    return author.own(table.metadata, newest, CommitKind.APPEND) is not None
