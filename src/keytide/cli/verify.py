"""The command that checks what is stored."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import pyarrow as pa
import typer

from keytide.cli.address import open_named_table
from keytide.cli.output import Format, note, write_rows
from keytide.cli.parameters import FormatOption, TableArgument, Warehouse
from keytide.cli.progress import progress_bar
from keytide.table.verify.verify import verify_table

__all__ = ["verify"]

_FINDINGS = pa.schema(
    [(name, pa.string()) for name in ("table", "path", "what", "expected", "way_out")]
)


def verify(
    table: TableArgument,
    warehouse: Warehouse = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Read no data: metadata, and whether each file is there."),
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Check everything that is stored of a table; the exit code is 1 where something is wrong.

    Each finding names a file, what is wrong with it, what was expected and the way out. Nothing is
    changed.

    Example: keytide verify -w /data/lake shop.orders
    """
    found = open_named_table(table, warehouse)
    with progress_bar("data files") as progress:
        result = verify_table(found.stored.store, found.name, quick=quick, progress=progress)
    if result.findings or format is Format.CSV:
        rows = pa.Table.from_pylist([asdict(each) for each in result.findings], schema=_FINDINGS)
        write_rows(rows.to_batches(), rows.schema, format, limit=max(1, rows.num_rows))
    for each in result.unchecked:
        note(f"not checked: {each}")
    note(result.summary)
    if not result.is_healthy:
        raise typer.Exit(1)
