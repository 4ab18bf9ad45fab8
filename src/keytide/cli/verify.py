"""Commands that check a table: whether its files are valid, and its health."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.base.plural import counted
from keytide.base.record import rows_of
from keytide.cli.address import open_named_table
from keytide.cli.output import Format, note, write_table
from keytide.cli.parameters import FormatOption, TableArgument, Warehouse
from keytide.cli.progress import progress_bar
from keytide.maintenance.upkeep.doctor import Sign
from keytide.verify.finding import Finding
from keytide.verify.verify import verify_table

__all__ = ["doctor", "verify"]


def verify(
    table: TableArgument,
    warehouse: Warehouse = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Check only metadata and that each file exists; read no data."
        ),
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Check everything that is stored for a table.

    Each finding names a file, the problem, what was expected and how to fix it. Changes nothing.
    The exit code is 1 if there are findings.

    Example: keytide verify -w /data/lake shop.orders
    """
    found = open_named_table(table, warehouse)
    with progress_bar("data files") as progress:
        result = verify_table(found.stored, quick=quick, progress=progress)
    if result.findings or format is Format.CSV:
        write_table(rows_of(Finding, result.findings), format)
    for each in result.unchecked:
        note(f"not checked: {each}")
    note(result.summary)
    if not result.is_healthy:
        raise typer.Exit(1)


def doctor(
    table: TableArgument,
    warehouse: Warehouse = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Check the health of a table and recommend maintenance.

    Checks for small files, sorted runs, skewed buckets, tombstones, snapshots, consumers, orphan
    files, branches and manifests. Reads no data. To check that the stored files are valid, use
    keytide verify.

    Example: keytide doctor -w /data/lake shop.orders
    """
    diagnosis = open_named_table(table, warehouse).doctor()
    write_table(rows_of(Sign, diagnosis.signs), format)
    ill = sum(sign.action is not None for sign in diagnosis.signs)
    note(
        f"table {diagnosis.table}: {counted(ill, 'recommendation')}" if ill else "no problems found"
    )
