"""Commands for a whole warehouse: run SQL, and show its tables in a browser.

SQL comes from an argument, a file, a pipe, or a prompt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from keytide.base.process import require
from keytide.base.text import counted
from keytide.cli.common_options import (
    FormatOption,
    Limit,
    Warehouse,
    cache_arguments,
    required_warehouse,
)
from keytide.cli.output import Format, note, write_rows
from keytide.errors import InvalidError
from keytide.lake.lake import Lake
from keytide.lake.opening import connect

# -- `keytide sql`: statements from an argument, a file, a pipe, or a prompt -----------------------


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
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidError(f"{file} is not UTF-8 text; save it as UTF-8 ({error})") from error
        except OSError as error:
            raise InvalidError(f"{file} cannot be read: {error}") from error
    if text is None and sys.stdin.isatty():
        from keytide.cli.prompt import run_prompt  # most runs do not need these libraries

        run_prompt(lake, lambda typed, shown: run_text(lake, typed, shown, limit), format)
        return
    run_text(lake, sys.stdin.read() if text is None else text, format, limit)


def run_text(lake: Lake, text: str, format: Format, limit: int | None) -> None:
    """Run statements and write the result of each."""
    for result in lake.sql_results(text):
        rows = result.to_arrow()
        if rows.num_columns:
            write_rows(rows.to_batches(), rows.schema, format, limit)
        else:
            note(f"{counted(result.row_count, 'row')} changed" if result.row_count else "done")


# -- `keytide ui`: a lake in a browser -------------------------------------------------------------


_PORT = 7411


def ui(
    warehouse: Warehouse = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. By default, only this machine can open the page."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")
    ] = _PORT,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Also allow compaction, tags, rollback and SQL statements that change tables.",
        ),
    ] = False,
    query_timeout: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="How long a query can run; 0 for no time limit."
        ),
    ] = 60,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Show a warehouse in the browser.

    The page shows tables, snapshots, files, changes and SQL. Prints the address of the page, which
    contains a secret token, and runs until Ctrl-C. The page is read-only unless you set
    --allow-changes.

    Example: keytide ui -w /data/lake --open
    """
    for library in ("starlette", "uvicorn", "jinja2"):
        require(library, "ui", "keytide ui")
    from keytide.ui.server import is_loopback, serve  # these libraries were checked above

    lake = connect(required_warehouse(warehouse), **cache_arguments())
    if not is_loopback(host):
        note(
            f"warning: the page is reachable from other machines at {host}. The token and all "
            "data are sent unencrypted; use a proxy with TLS"
        )
    serve(
        lake, host, port, allows_changes=allow_changes, opens=open_browser,
        query_seconds_max=query_timeout or None, tell=typer.echo,
    )  # fmt: skip
