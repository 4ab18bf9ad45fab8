"""The command `keytide`, with the commands that run SQL and show a lake in a browser.

Data goes to standard output and everything else to standard error. The exit code is 0 for success,
1 for a problem (an error, or a missing row), 2 for wrong usage and 130 after Ctrl-C. A reader that
stops early (`| head`) is not an error. SQL comes from an argument, a file, a pipe, or a prompt.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import keytide
from keytide.base.process import require
from keytide.base.text import counted
from keytide.cli import maintenance
from keytide.cli.common_options import (
    CACHE_ARGUMENTS,
    FormatOption,
    Limit,
    Warehouse,
    cache_arguments,
    required_warehouse,
)
from keytide.cli.feeds import ingest, lag
from keytide.cli.inspection import describe, explain, get, history, ls, scan, snapshots, why
from keytide.cli.output import Format, note, unwritable, write_rows
from keytide.cli.tags_and_branches import branch, consumer, tag
from keytide.errors import InvalidError, KeytideError
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


# -- the command `keytide`, and its exit codes -----------------------------------------------------


_INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command that Ctrl-C ended."""


class _Commands(TyperGroup):
    """The group of commands. Every error is written as one line, with an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has stopped
            _discard_output()
            raise typer.Exit(0) from None
        except KeyboardInterrupt as error:
            typer.echo("stopped", err=True)
            raise typer.Exit(_INTERRUPTED) from error
        except KeytideError as error:
            self._report(ctx, str(error), error)
        except Exception as error:
            if hasattr(error, "exit_code"):  # wrong usage, which typer reports
                raise
            message = f"unexpected {type(error).__name__}: {error} (use --debug for the traceback)"
            self._report(ctx, message, error)

    def _report(self, ctx: Any, message: str, error: Exception) -> None:
        if ctx.params.get("debug"):
            raise error
        is_pointing = message.endswith("^")  # at a position of a SQL text, shown below the message
        shown = message if is_pointing else " ".join(message.split())
        typer.echo(f"error: {shown}", err=True)
        raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"keytide {keytide.__version__}")
        raise typer.Exit


@app.callback()
def _keytide(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    cache: Annotated[
        str | None,
        typer.Option(
            help="Folder on the local disk for a cache of files in an object store.",
            show_default=False,
        ),
    ] = None,
    cache_bytes: Annotated[
        str | None,
        typer.Option(help="Maximum size of the cache; default: 10 gb.", show_default=False),
    ] = None,
) -> None:
    """Primary-key tables in a data lake: inspect, query and load them.

    TABLE is a path such as /data/lake/shop.db/orders, or a name such as shop.orders in the
    warehouse given by --warehouse or KEYTIDE_WAREHOUSE. Without a warehouse, a bare name is a
    folder in the current directory.

    Example: keytide scan /data/lake/shop.db/orders --limit 10
    """
    CACHE_ARGUMENTS.set({"cache": cache, "cache_bytes": cache_bytes})


for _command in (
    ls, describe, scan, get, why, snapshots, history, maintenance.rollback, maintenance.restore,
    maintenance.expire, maintenance.expire_partitions, maintenance.orphans, maintenance.publish,
    maintenance.purge_files, maintenance.rewrite_file_index, explain, maintenance.compact,
    maintenance.convert, maintenance.verify, maintenance.doctor, maintenance.upsert_estimate, sql,
    ingest, lag, ui,
):  # fmt: skip
    app.command()(_command)
app.add_typer(tag)
app.add_typer(consumer)
app.add_typer(branch)


def main() -> None:
    """Run the command line and exit."""
    try:
        try:
            app(prog_name="keytide")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:  # between commands: before one is found, or after it
        raise SystemExit(_INTERRUPTED) from None
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(0) from None
    except OSError as error:  # of output that is no result of a command, such as --help
        _discard_output()
        with suppress(OSError):
            typer.echo(f"error: {unwritable(error)}", err=True)
        raise SystemExit(1) from None


def _discard_output() -> None:
    """Discard the rest of the buffers, also at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
