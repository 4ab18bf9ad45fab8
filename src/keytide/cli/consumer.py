"""The commands `keytide consumer ...`: the positions of named readers."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.base.record import rows_of
from keytide.cli.common_options import (
    FormatOption,
    Limit,
    TableArgument,
    Warehouse,
    group,
    open_named_table,
)
from keytide.cli.output import Format, note, write_rows
from keytide.maintenance.history import NamedConsumer

__all__ = ["consumer"]

consumer = group("consumer", "Manage consumers: stored positions of readers.")

Name = Annotated[
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


@consumer.command()
def reset(
    table: TableArgument,
    name: Name,
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


@consumer.command()
def clear(
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
