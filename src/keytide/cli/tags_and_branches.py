"""The commands `keytide tag`, `keytide branch` and `keytide consumer`: what is named in a table.

A tag names a snapshot, a branch another line of them, and a consumer the position of a reader.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Annotated

import pyarrow as pa
import typer

from keytide.base.record import rows_of
from keytide.cli.common_options import (
    FormatOption,
    Limit,
    TableArgument,
    Warehouse,
    command,
    group,
    open_named_table,
)
from keytide.cli.output import Format, note, write_rows, write_table
from keytide.errors import KeytideWarning
from keytide.maintenance import tags
from keytide.maintenance.history import NamedConsumer
from keytide.maintenance.tags import NamedTag

# -- tags ------------------------------------------------------------------------------------------


tag = group("tag", "Manage tags: named snapshots that do not expire.")

_NAME = typer.Argument(metavar="NAME", help="Name of the tag.", show_default=False)
_OF = {
    "name": _NAME,
    "snapshot_id": typer.Option(
        "--snapshot-id", help="The snapshot; default: the latest.", show_default=False
    ),
    "time_retained": typer.Option(
        "--time-retained",
        help="How long to keep the tag ('7 d', 'forever'); default: as the table's options say.",
        show_default=False,
    ),
}

_ROWS = pa.schema(
    [
        ("name", pa.string()),
        ("snapshot_id", pa.int64()),
        ("snapshot_time", pa.timestamp("ms", "UTC")),
        ("stored_versions", pa.int64()),
        ("create_time", pa.timestamp("us")),
        ("retained_seconds", pa.int64()),
    ]
)


@tag.command("ls")
def list_tags(
    table: TableArgument,
    warehouse: Warehouse = None,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the tags of a table, ordered by snapshot.

    stored_versions includes deletes and older versions. create_time is in the time zone of the
    tag's creator. A tag without retained_seconds never expires.

    Example: keytide tag ls -w /data/lake shop.orders
    """
    _write(open_named_table(table, warehouse).tags(), format, limit)


@tag.command("create")
@command(tags.create_tag, **_OF)
def create_tag(done: NamedTag, format: Format) -> None:
    """Create a tag for the latest snapshot, or for the given one.

    Example: keytide tag create -w /data/lake shop.orders end-of-month --time-retained '90 d'
    """
    _write([done], format)


@tag.command("replace")
@command(tags.replace_tag, **_OF)
def replace_tag(done: NamedTag, format: Format) -> None:
    """Move a tag to the latest snapshot, or to the given one.

    Example: keytide tag replace -w /data/lake shop.orders checked --snapshot-id 7
    """
    _write([done], format)


@tag.command("rename")
@command(
    tags.rename_tag,
    name=_NAME,
    new_name=typer.Argument(metavar="NEW_NAME", help="New name of the tag.", show_default=False),
)
def rename_tag(done: NamedTag, format: Format) -> None:
    """Rename a tag.

    Example: keytide tag rename -w /data/lake shop.orders checked approved
    """
    _write([done], format)


@tag.command("delete")
def delete_tag(
    table: TableArgument, name: Annotated[str, _NAME], warehouse: Warehouse = None
) -> None:
    """Delete a tag.

    Its snapshot remains readable by id until it expires.

    Example: keytide tag delete -w /data/lake shop.orders checked
    """
    open_named_table(table, warehouse).delete_tag(name)
    note(f"tag {name} deleted")


@tag.command("expire")
@command(
    tags.expire_tags,
    older_than=typer.Option(
        "--older-than", help="Also delete tags created before this ISO time.", show_default=False
    ),
    dry_run=typer.Option("--dry-run", help="Show which tags would be deleted, without doing it."),
)
def expire_tag(done: tags.Tags, format: Format) -> None:
    """Delete expired tags. Writes do this automatically.

    Example: keytide tag expire -w /data/lake shop.orders --dry-run
    """
    _write(done, format)


def _write(found: Iterable[NamedTag], format: Format, limit: int | None = None) -> None:
    lines = []
    for tag in found:
        retained = tag.time_retained
        lines.append(
            {
                "name": tag.name,
                "snapshot_id": tag.snapshot_id,
                "snapshot_time": tag.snapshot.time_millis,
                "stored_versions": tag.snapshot.total_record_count,
                "create_time": tag.create_time,
                "retained_seconds": None if retained is None else int(retained.total_seconds()),
            }
        )
    rows = pa.Table.from_pylist(lines, schema=_ROWS)
    write_rows(rows.to_batches(), rows.schema, format, limit)


# -- branches --------------------------------------------------------------------------------------


branch = group("branch", "Manage the branches of a table.")

BranchName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the branch.", show_default=False)
]

_BRANCH_ROWS = pa.schema(
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
    rows = [
        {
            "name": info.name,
            "create_time": info.create_time,
            "first_snapshot_id": None if info.first is None else info.first.id,
            "newest_snapshot_id": None if info.newest is None else info.newest.id,
            "stored_versions": 0 if info.newest is None else info.newest.total_record_count,
        }
        for info in open_named_table(table, warehouse).branches()
    ]
    found = pa.Table.from_pylist(rows, schema=_BRANCH_ROWS)
    write_rows(found.to_batches(), _BRANCH_ROWS, format, limit)


@branch.command("create")
def create_branch(
    table: TableArgument,
    name: BranchName,
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


@branch.command("delete")
def delete_branch(table: TableArgument, name: BranchName, warehouse: Warehouse = None) -> None:
    """Delete a branch. The main branch does not change.

    Example: keytide branch delete -w /data/lake shop.orders trial
    """
    open_named_table(table, warehouse).delete_branch(name)
    note(f"branch {name} deleted")


@branch.command("rename")
def rename_branch(
    table: TableArgument,
    name: BranchName,
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
    name: BranchName,
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


# -- consumers -------------------------------------------------------------------------------------


consumer = group("consumer", "Manage consumers: stored positions of readers.")

ConsumerName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the consumer.", show_default=False)
]


@consumer.command("ls")
def list_consumers(
    table: TableArgument,
    warehouse: Warehouse = None,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the consumers of a table, with their next snapshot and the time of their last update.

    Example: keytide consumer ls -w /data/lake shop.orders
    """
    rows = rows_of(NamedConsumer, open_named_table(table, warehouse).consumers())
    write_rows(rows.to_batches(), rows.schema, format, limit)


@consumer.command("reset")
def reset_consumer(
    table: TableArgument,
    name: ConsumerName,
    warehouse: Warehouse = None,
    next_snapshot: Annotated[
        int | None,
        typer.Option(
            help="The snapshot that it reads next; without it, the consumer is deleted.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Set the next snapshot of a consumer, or delete the consumer.

    Example: keytide consumer reset -w /data/lake shop.orders nightly --next-snapshot 7
    """
    done = open_named_table(table, warehouse).reset_consumer(name, next_snapshot)
    note(
        f"consumer {name} deleted"
        if done is None
        else f"consumer {name} continues at snapshot {done.next_snapshot}"
    )


@consumer.command("clear")
def clear_consumer(
    table: TableArgument,
    warehouse: Warehouse = None,
    including: Annotated[
        str | None,
        typer.Option(
            help="Delete only consumers whose names match this regular expression.",
            show_default=False,
        ),
    ] = None,
    excluding: Annotated[
        str | None,
        typer.Option(
            help="Keep consumers whose names match this regular expression.", show_default=False
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            help="Delete only consumers not updated since this ISO time (UTC, unless it has an "
            "offset).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Delete consumers: all of them, by name, or those that have been inactive since a time.

    Example: keytide consumer clear -w /data/lake shop.orders --older-than 2026-01-31
    """
    found = open_named_table(table, warehouse)
    if older_than is None:
        gone = found.clear_consumers(including, excluding)
    elif including or excluding:
        raise typer.BadParameter("use either names or --older-than")
    else:
        gone = found.expire_consumers(older_than)
    note(f"consumers deleted: {', '.join(gone) or 'none'}")
