"""The commands `keytide consumer ...`: places of named readers."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.cli.address import open_named_table
from keytide.cli.output import Format, note, write_rows
from keytide.cli.parameters import FormatOption, Limit, TableArgument, Warehouse, group
from keytide.record import rows_of
from keytide.table.history.consumers import NamedConsumer

__all__ = ["consumer"]

consumer = group("consumer", "Places of named readers, which keep snapshots from expiring.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The consumer.", show_default=False)]


@consumer.command("ls")
def list_consumers(
    table: TableArgument,
    warehouse: Warehouse = None,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List a table's consumers: where each goes on, and when it last kept its place.

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
        typer.Option(help="Where it is to go on; without it it is forgotten.", show_default=False),
    ] = None,
) -> None:
    """Have a consumer go on at another snapshot, or forget it.

    Example: keytide consumer reset -w /data/lake shop.orders nightly --next-snapshot 7
    """
    done = open_named_table(table, warehouse).reset_consumer(name, next_snapshot)
    note(f"{name} is forgotten" if done is None else f"{name} goes on at {done.next_snapshot}")


@consumer.command()
def clear(
    table: TableArgument,
    warehouse: Warehouse = None,
    including: Annotated[
        str | None,
        typer.Option(help="A regular expression of names; all without it.", show_default=False),
    ] = None,
    excluding: Annotated[
        str | None,
        typer.Option(help="A regular expression of names that stay.", show_default=False),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            help="Only those that have not kept their place since an ISO time, UTC unless it says "
            "otherwise.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Forget consumers: all, some by name, or those that have not been here for long.

    Example: keytide consumer clear -w /data/lake shop.orders --older-than 2026-01-31
    """
    found = open_named_table(table, warehouse)
    if older_than is None:
        gone = found.clear_consumers(including, excluding)
    elif including or excluding:
        raise typer.BadParameter("give names or a time")
    else:
        gone = found.expire_consumers(older_than)
    note(f"forgotten: {', '.join(gone) or 'none'}")
