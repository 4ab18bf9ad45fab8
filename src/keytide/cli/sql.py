"""The command that runs SQL: from an argument, a file, a pipe, or at a prompt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from keytide.base.plural import counted
from keytide.cli.address import required_warehouse
from keytide.cli.near import cache_arguments
from keytide.cli.output import Format, note, write_rows
from keytide.cli.parameters import FormatOption, Limit, Warehouse
from keytide.errors import InvalidError
from keytide.lake.lake import Lake
from keytide.lake.opening import connect
from keytide.sql.result import Result

__all__ = ["run_text", "sql"]


def sql(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]",
            help="Statements separated by semicolons; default: from --file, standard input, or "
            "an interactive prompt at a terminal.",
            show_default=False,
        ),
    ] = None,
    warehouse: Warehouse = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Read the statements from a file.", exists=True, dir_okay=False),
    ] = None,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
    allow_external_files: Annotated[
        bool,
        typer.Option(
            "--allow-external-files",
            help="Allow queries to read files outside the warehouse, such as read_csv('a.csv').",
        ),
    ] = False,
) -> None:
    """Run SQL statements on the tables of a warehouse.

    Each statement is atomic. If a statement fails, the run stops, and the statements before it
    remain committed. If the text cannot be parsed, no statement runs.

    Example: keytide sql -w /data/lake "SELECT status, count(*) FROM shop.orders GROUP BY status"
    """
    if text is not None and file is not None:
        raise typer.BadParameter("use either TEXT or --file, not both")
    address = required_warehouse(warehouse)
    lake = connect(address, allow_external_files=allow_external_files, **cache_arguments())
    if file is not None:
        text = _text_of(file)
    if text is None and sys.stdin.isatty():
        from keytide.cli.prompt import talk  # most runs do not need these libraries

        talk(lake, lambda typed, shown: run_text(lake, typed, shown, limit), format)
        return
    run_text(lake, sys.stdin.read() if text is None else text, format, limit)


def run_text(lake: Lake, text: str, format: Format, limit: int | None) -> None:
    """Run statements and write the result of each."""
    for result in lake.sql_results(text):
        _write(result, format, limit)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidError(f"{file} is not UTF-8 text; save it as UTF-8 ({error})") from error
    except OSError as error:
        raise InvalidError(f"{file} cannot be read: {error}") from error


def _write(result: Result, format: Format, limit: int | None) -> None:
    rows = result.to_arrow()
    if rows.num_columns:
        write_rows(rows.to_batches(), rows.schema, format, limit)
    else:
        note(f"{counted(result.row_count, 'row')} changed" if result.row_count else "done")
