"""The command `keytide`.

Data goes to standard output and everything else to standard error. The exit code is 0 for
success, 1 for a problem (an error, or a missing row), 2 for wrong usage and 130 after Ctrl-C. A
reader that stops early (`| head`) is not an error.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import keytide
from keytide.cli.branch import branch
from keytide.cli.catalog import describe, history, ls, snapshots
from keytide.cli.consumer import consumer
from keytide.cli.estimate import upsert_estimate
from keytide.cli.ingest import ingest, lag
from keytide.cli.near import give_cache
from keytide.cli.output import unwritable
from keytide.cli.read import explain, get, scan, why
from keytide.cli.sql import sql
from keytide.cli.tag import tag
from keytide.cli.ui import ui
from keytide.cli.upkeep import (
    compact,
    convert,
    expire,
    expire_partitions,
    orphans,
    publish,
    purge_files,
    restore,
    rewrite_file_index,
    rollback,
)
from keytide.cli.verify import doctor, verify
from keytide.errors import KeytideError

__all__ = ["app", "main"]

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
    give_cache(cache, cache_bytes)


for _command in (
    ls, describe, scan, get, why, snapshots, history, rollback, restore, expire, expire_partitions,
    orphans, publish, purge_files, rewrite_file_index, explain, compact, convert, verify, doctor,
    upsert_estimate, sql, ingest, lag, ui,
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
