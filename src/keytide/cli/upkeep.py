"""Commands that keep a table in shape."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import pyarrow as pa
import typer

from keytide.cli.address import open_named_table
from keytide.cli.output import Format, note, write_rows
from keytide.cli.parameters import FormatOption, TableArgument, Warehouse
from keytide.table.upkeep.compaction import COMPACTION_ROW

__all__ = ["compact"]


def compact(
    table: TableArgument,
    warehouse: Warehouse = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Merge every bucket into one sorted run, due or not."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be taken up.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Merge a table's files into fewer and larger ones, with the same rows.

    Writes do so by themselves, unless the table is write-only. Readers and writers are not held up.

    Example: keytide compact -w /data/lake shop.orders --full
    """
    done = open_named_table(table, warehouse).compact(full=full, dry_run=dry_run)
    rows = pa.Table.from_pylist([asdict(done)], schema=COMPACTION_ROW)
    write_rows(rows.to_batches(), rows.schema, format, limit=1)
    if done.overtaken:
        note("another compaction came first; nothing was done twice")
    elif not done.files_before:
        note("nothing to compact")
