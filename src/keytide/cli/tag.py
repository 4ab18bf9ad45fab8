"""The commands `keytide tag ...`: names for snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import pyarrow as pa
import typer

from keytide.cli.common_options import (
    FormatOption,
    Limit,
    TableArgument,
    Warehouse,
    command,
    group,
    open_named_table,
)
from keytide.cli.output import Format, note, write_rows
from keytide.maintenance import tags
from keytide.maintenance.tags import NamedTag

__all__ = ["tag"]

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


@tag.command()
@command(tags.create_tag, **_OF)
def create(done: NamedTag, format: Format) -> None:
    """Create a tag for the latest snapshot, or for the given one.

    Example: keytide tag create -w /data/lake shop.orders end-of-month --time-retained '90 d'
    """
    _write([done], format)


@tag.command()
@command(tags.replace_tag, **_OF)
def replace(done: NamedTag, format: Format) -> None:
    """Move a tag to the latest snapshot, or to the given one.

    Example: keytide tag replace -w /data/lake shop.orders checked --snapshot-id 7
    """
    _write([done], format)


@tag.command()
@command(
    tags.rename_tag,
    name=_NAME,
    new_name=typer.Argument(metavar="NEW_NAME", help="New name of the tag.", show_default=False),
)
def rename(done: NamedTag, format: Format) -> None:
    """Rename a tag.

    Example: keytide tag rename -w /data/lake shop.orders checked approved
    """
    _write([done], format)


@tag.command()
def delete(table: TableArgument, name: Annotated[str, _NAME], warehouse: Warehouse = None) -> None:
    """Delete a tag.

    Its snapshot remains readable by id until it expires.

    Example: keytide tag delete -w /data/lake shop.orders checked
    """
    open_named_table(table, warehouse).delete_tag(name)
    note(f"tag {name} deleted")


@tag.command()
@command(
    tags.expire_tags,
    older_than=typer.Option(
        "--older-than", help="Also delete tags created before this ISO time.", show_default=False
    ),
    dry_run=typer.Option("--dry-run", help="Show which tags would be deleted, without doing it."),
)
def expire(done: tags.Tags, format: Format) -> None:
    """Delete expired tags. Writes do this automatically.

    Example: keytide tag expire -w /data/lake shop.orders --dry-run
    """
    _write(done, format)


def _write(found: Iterable[NamedTag], format: Format, limit: int | None = None) -> None:
    rows = pa.Table.from_pylist([_row(each) for each in found], schema=_ROWS)
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
