"""The commands `keytide branch ...`: lines of a table's history beside the main one."""

from __future__ import annotations

import warnings
from typing import Annotated

import pyarrow as pa
import typer

from keytide.cli.address import open_named_table
from keytide.cli.output import Format, note, write_rows, write_table
from keytide.cli.parameters import FormatOption, Limit, TableArgument, Warehouse, group
from keytide.errors import KeytideWarning
from keytide.table.history.branches import BranchInfo

__all__ = ["branch"]

branch = group("branch", "Make, list, rename and delete branches of a table, and bring one back.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The branch.", show_default=False)]

_ROWS = pa.schema(
    [
        ("name", pa.string()),
        ("create_time", pa.timestamp("ms", "UTC")),
        ("first_snapshot_id", pa.int64()),
        ("newest_snapshot_id", pa.int64()),
        ("stored_versions", pa.int64()),
    ]
)


@branch.command("ls")
def list_branches(
    table: TableArgument,
    warehouse: Warehouse = None,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List a table's branches beside the main one.

    Every command takes a branch where it takes a table: 'shop.orders$branch_trial', in quotes.

    Example: keytide branch ls -w /data/lake shop.orders
    """
    rows = [_row(each) for each in open_named_table(table, warehouse).branches()]
    found = pa.Table.from_pylist(rows, schema=_ROWS)
    write_rows(found.to_batches(), _ROWS, format, limit)


@branch.command()
def create(
    table: TableArgument,
    name: Name,
    warehouse: Warehouse = None,
    snapshot_id: Annotated[
        int | None,
        typer.Option("--snapshot-id", help="Of this snapshot, not of the newest.",
                     show_default=False),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", help="Of this tag.", show_default=False)
    ] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Without rows.")] = False,
) -> None:  # fmt: skip
    """Make a branch, of the newest snapshot unless told otherwise. No data is copied.

    Example: keytide branch create -w /data/lake shop.orders trial --tag checked
    """
    found = open_named_table(table, warehouse)
    note(f"{found.create_branch(name, snapshot_id, tag, empty=empty).name} is there")


@branch.command()
def delete(table: TableArgument, name: Name, warehouse: Warehouse = None) -> None:
    """Delete a branch. The table keeps what it has.

    Example: keytide branch delete -w /data/lake shop.orders trial
    """
    open_named_table(table, warehouse).delete_branch(name)
    note(f"branch {name} is gone")


@branch.command()
def rename(
    table: TableArgument,
    name: Name,
    new_name: Annotated[
        str, typer.Argument(metavar="NEW_NAME", help="What to call it.", show_default=False)
    ],
    warehouse: Warehouse = None,
) -> None:
    """Give a branch another name.

    Example: keytide branch rename -w /data/lake shop.orders trial second
    """
    open_named_table(table, warehouse).rename_branch(name, new_name)
    note(f"branch {name} is {new_name} now")


@branch.command("fast-forward")
def fast_forward(
    table: TableArgument,
    name: Name,
    warehouse: Warehouse = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be done.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a table what a branch of it is. What it has beyond the place where they part is gone.

    Example: keytide branch fast-forward -w /data/lake shop.orders trial --dry-run
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeytideWarning)  # said below
        done = open_named_table(table, warehouse).fast_forward(name, dry_run=dry_run)
    write_table(done.to_arrow(), format)
    if done.consumers:
        note(f"told of what is gone, and to begin anew: {', '.join(done.consumers)}")


def _row(info: BranchInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "create_time": info.create_time,
        "first_snapshot_id": None if info.first is None else info.first.id,
        "newest_snapshot_id": None if info.newest is None else info.newest.id,
        "stored_versions": 0 if info.newest is None else info.newest.total_record_count,
    }
