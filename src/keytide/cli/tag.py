"""The commands `keytide tag ...`: names for snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import pyarrow as pa
import typer

from keytide.cli.address import open_named_table
from keytide.cli.output import Format, note, write_rows
from keytide.cli.parameters import FormatOption, Limit, TableArgument, Warehouse
from keytide.table.history.tags import NamedTag

__all__ = ["tag"]

tag = typer.Typer(
    name="tag",
    help="Name snapshots, which keeps them from expiring.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tag.", show_default=False)]
Snapshot = Annotated[
    int | None,
    typer.Option("--snapshot-id", help="The snapshot; the newest without it.", show_default=False),
]
Retained = Annotated[
    str | None,
    typer.Option(
        "--time-retained",
        help="How long it is to stay ('7 d', 'forever'); without it, as the table says.",
        show_default=False,
    ),
]

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
    """List a table's tags, by their snapshots.

    stored_versions counts versions of keys that lost and deletions too. create_time is in the time
    zone of whoever made the tag; a tag without retained_seconds stays.

    Example: keytide tag ls -w /data/lake shop.orders
    """
    _write(open_named_table(table, warehouse).tags(), format, limit)


@tag.command()
def create(
    table: TableArgument,
    name: Name,
    warehouse: Warehouse = None,
    snapshot_id: Snapshot = None,
    time_retained: Retained = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Name a snapshot, the newest unless told otherwise.

    Example: keytide tag create -w /data/lake shop.orders end-of-month --time-retained '90 d'
    """
    found = open_named_table(table, warehouse)
    _write([found.create_tag(name, snapshot_id, time_retained)], format)


@tag.command()
def replace(
    table: TableArgument,
    name: Name,
    warehouse: Warehouse = None,
    snapshot_id: Snapshot = None,
    time_retained: Retained = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Have a tag name another snapshot, the newest unless told otherwise.

    Example: keytide tag replace -w /data/lake shop.orders checked --snapshot-id 7
    """
    found = open_named_table(table, warehouse)
    _write([found.replace_tag(name, snapshot_id, time_retained)], format)


@tag.command()
def rename(
    table: TableArgument,
    name: Name,
    new_name: Annotated[
        str, typer.Argument(metavar="NEW_NAME", help="Its new name.", show_default=False)
    ],
    warehouse: Warehouse = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Give a tag another name.

    Example: keytide tag rename -w /data/lake shop.orders checked approved
    """
    _write([open_named_table(table, warehouse).rename_tag(name, new_name)], format)


@tag.command()
def delete(table: TableArgument, name: Name, warehouse: Warehouse = None) -> None:
    """Forget a tag. Its snapshot can be read by its id for as long as it is there itself.

    Example: keytide tag delete -w /data/lake shop.orders checked
    """
    open_named_table(table, warehouse).delete_tag(name)
    note(f"tag {name} is gone")


@tag.command()
def expire(
    table: TableArgument,
    warehouse: Warehouse = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Also those made before this ISO time.",
                     show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell which tags would go.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:  # fmt: skip
    """Delete tags whose time is over. Writes do so by themselves.

    Example: keytide tag expire -w /data/lake shop.orders --dry-run
    """
    _write(open_named_table(table, warehouse).expire_tags(older_than, dry_run=dry_run), format)


def _write(tags: Iterable[NamedTag], format: Format, limit: int | None = None) -> None:
    rows = pa.Table.from_pylist([_row(each) for each in tags], schema=_ROWS)
    write_rows(rows.to_batches(), rows.schema, format, limit)


def _row(tag: NamedTag) -> dict[str, object]:
    retained = tag.time_retained
    return {
        "name": tag.name,
        "snapshot_id": tag.snapshot_id,
        "snapshot_time": tag.snapshot.time_millis,
        "stored_versions": tag.snapshot.total_record_count,
        "create_time": tag.create_time,
        "retained_seconds": None if retained is None else int(retained.total_seconds()),
    }
