"""The commands `keytide branch ...`: branches of a table."""

from __future__ import annotations

import warnings
from typing import Annotated

import pyarrow as pa
import typer

from keytide.cli.common_options import (
    FormatOption,
    Limit,
    TableArgument,
    Warehouse,
    group,
    open_named_table,
)
from keytide.cli.output import Format, note, write_rows, write_table
from keytide.errors import KeytideWarning
from keytide.maintenance.branches import BranchInfo

__all__ = ["branch"]

branch = group("branch", "Manage the branches of a table.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the branch.", show_default=False)
]

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
    """List the branches of a table, except the main branch.

    Every command accepts a branch in place of a table: 'shop.orders$branch_trial', in quotes.

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
        typer.Option("--snapshot-id", help="Create the branch from this snapshot; default: the "
                     "latest.",
                     show_default=False),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option("--tag", help="Create the branch from this tag.", show_default=False),
    ] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Create the branch without rows.")] = False,
) -> None:  # fmt: skip
    """Create a branch of a table.

    It starts with the latest snapshot, or with the given one. No data is copied.

    Example: keytide branch create -w /data/lake shop.orders trial --tag checked
    """
    found = open_named_table(table, warehouse)
    note(f"branch {found.create_branch(name, snapshot_id, tag, empty=empty).name} created")


@branch.command()
def delete(table: TableArgument, name: Name, warehouse: Warehouse = None) -> None:
    """Delete a branch. The main branch does not change.

    Example: keytide branch delete -w /data/lake shop.orders trial
    """
    open_named_table(table, warehouse).delete_branch(name)
    note(f"branch {name} deleted")


@branch.command()
def rename(
    table: TableArgument,
    name: Name,
    new_name: Annotated[
        str, typer.Argument(metavar="NEW_NAME", help="New name of the branch.", show_default=False)
    ],
    warehouse: Warehouse = None,
) -> None:
    """Rename a branch.

    Example: keytide branch rename -w /data/lake shop.orders trial second
    """
    open_named_table(table, warehouse).rename_branch(name, new_name)
    note(f"branch {name} renamed to {new_name}")


@branch.command("fast-forward")
def fast_forward(
    table: TableArgument,
    name: Name,
    warehouse: Warehouse = None,
    discard: Annotated[
        bool, typer.Option("--discard", help="Delete commits that the branch does not have.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what --discard would do, without doing it.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Fast-forward the main branch to a branch.

    This is refused if the main branch has commits of rows that the branch does not have.

    Example: keytide branch fast-forward -w /data/lake shop.orders trial --dry-run
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeytideWarning)  # reported below
        done = open_named_table(table, warehouse).fast_forward(
            name, discard=discard, dry_run=dry_run
        )
    write_table(done.to_arrow(), format)
    if done.consumers:
        note(f"consumers that read deleted snapshots and must restart: {', '.join(done.consumers)}")


def _row(info: BranchInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "create_time": info.create_time,
        "first_snapshot_id": None if info.first is None else info.first.id,
        "newest_snapshot_id": None if info.newest is None else info.newest.id,
        "stored_versions": 0 if info.newest is None else info.newest.total_record_count,
    }
