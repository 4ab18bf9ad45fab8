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
        help="Path or address of a table (/data/lake/shop.db/orders, s3://...), or the name "
        "database.table in the warehouse.",
        show_default=False,
    ),
]
Warehouse = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        "-w",
        envvar="KEYTIDE_WAREHOUSE",
        help="Folder or address (s3://, gs://, az://) that names are looked up in, or a REST "
        "catalog of Paimon (http://host:port?warehouse=name). Credentials come from the "
        "environment.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        help="For people: table, or vertical with a line for each value and nothing cut. For "
        "programs: json (rows as JSON lines) and csv, which keep every value exactly.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"At most so many rows. Without it people see {TABLE_ROWS}, json and csv hold all.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(help="Columns to read, separated by commas: id,status", show_default=False),
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
        help="Read the table as of an ISO time, UTC unless it says otherwise: 2026-01-31T12:00",
        show_default=False,
    ),
]


def group(name: str, help: str) -> typer.Typer:
    """Commands that share a first word."""
    return typer.Typer(
        name=name, help=help, no_args_is_help=True, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip


def names(text: str | None) -> tuple[str, ...]:
    """The names in a list separated by commas, each once; none for no text."""
    parts = (part.strip() for part in (text or "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))
