"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from keytide.cli.output import TABLE_ROWS, Format

__all__ = [
    "AsOf",
    "Columns",
    "FormatOption",
    "Limit",
    "SnapshotId",
    "TableArgument",
    "Tag",
    "Warehouse",
    "Where",
    "group",
    "names",
]

TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="Path or URI of a table (/data/lake/shop.db/orders, s3://...), or its name in the "
        "warehouse (database.table).",
        show_default=False,
    ),
]
Warehouse = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        "-w",
        envvar="KEYTIDE_WAREHOUSE",
        help="Folder or URI (s3://, gs://, az://) of the warehouse, or a Paimon REST catalog "
        "(http://host:port?warehouse=name). Credentials are read from the environment.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        help="Output format. For people: table, or vertical with one line per value and nothing "
        "truncated. For programs: json (JSON lines) or csv, which keep every value exactly.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Maximum number of rows. Default: {TABLE_ROWS} rows in formats for people, all "
        "rows in json and csv.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(help="Comma-separated columns to read: id,status", show_default=False),
]
Where = Annotated[
    str | None,
    typer.Option(
        help="""SQL condition on columns: "dt = '2026-01-31' and qty > 3\"""", show_default=False
    ),
]
SnapshotId = Annotated[
    int | None, typer.Option("--snapshot-id", help="Read this snapshot.", show_default=False)
]
Tag = Annotated[
    str | None, typer.Option("--tag", help="Read the snapshot of this tag.", show_default=False)
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        help="Read the table as of an ISO time: 2026-01-31T12:00 (UTC, unless it has an offset)",
        show_default=False,
    ),
]


def group(name: str, help: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        name=name, help=help, no_args_is_help=True, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip


def names(text: str | None) -> tuple[str, ...]:
    """The distinct names in a comma-separated list. None for no value."""
    parts = (part.strip() for part in (text or "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))
