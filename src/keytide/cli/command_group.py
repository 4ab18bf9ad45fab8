"""The group of all commands: arguments before the command, and exit codes after it.

Data goes to standard output and everything else to standard error. The exit code is 0 for success,
1 for a problem (an error, or a missing row), 2 for wrong usage and 130 after Ctrl-C. A reader that
stops early (`| head`) is not an error.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypedDict

import typer
from typer.core import TyperGroup

from keytide.errors import KeytideError


class CacheArguments(TypedDict):
    """The arguments of `connect` and `open_table` about a cache."""

    cache: str | None
    cache_bytes: str | None


CACHE_ARGUMENTS: ContextVar[CacheArguments] = ContextVar("cache")
"""What the command line sets for the next command."""

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a command that Ctrl-C ended."""


class CommandGroup(TyperGroup):
    """A group of commands. Every error is written as one line, with an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the called command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has stopped
            _discard_output()
            raise typer.Exit(0) from None
        except KeyboardInterrupt as error:
            typer.echo("stopped", err=True)
            raise typer.Exit(INTERRUPTED) from error
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


def run(app: typer.Typer) -> None:
    """Run the command line and exit."""
    try:
        try:
            app(prog_name="keytide")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:  # between commands: before one is found, or after it
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        _discard_output()
        raise SystemExit(0) from None
    except OSError as error:  # of output that is no result of a command, such as --help
        _discard_output()
        with suppress(OSError):
            typer.echo(f"error: {unwritable(error)}", err=True)
        raise SystemExit(1) from None


def unwritable(error: OSError) -> str:
    """What to say if standard output cannot be written."""
    return (
        f"standard output cannot be written: {error.strerror or error}; what the command changed "
        "is stored: write its output to a place with room"
    )


def _discard_output() -> None:
    """Discard the rest of the buffers, also at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
