"""The commands of the prompt that are not SQL: a backslash and a letter."""

from __future__ import annotations

from keytide.cli.catalog import describe_table, list_tables
from keytide.cli.output import Format, note
from keytide.errors import InvalidError
from keytide.lake.lake import Lake
from keytide.lake.table import Table
from keytide.sql.names import table_of

__all__ = ["LEAVE", "carry_out", "is_shortcut"]

LEAVE = ("\\q", "exit", "quit")
"""The command that ends the prompt."""

_HELP = ("\\?", "help", "?")
_ALL = {
    "\\d": "list the tables of the lake",
    "\\d TABLE": "show a table's columns, keys and options",
    "\\x": "switch between one line per row (table) and one line per value (vertical)",
    "\\?, help": "this list",
    "\\q, exit, Ctrl-D": "leave",
}
_USAGE = "\n".join(f"  {usage:<16}  {does}" for usage, does in _ALL.items())
_GUIDE = (
    "End statements with a semicolon; they can span several lines. Ctrl-C discards the "
    f"statement.\n{_USAGE}"
)


def is_shortcut(line: str) -> bool:
    """Whether a line is a command of this module, and not SQL."""
    return line.startswith("\\") or line.rstrip("; ").lower() in _HELP


def carry_out(line: str, lake: Lake, format: Format) -> Format:
    """Run a command. Returns the output format to use from then on.

    Raises `InvalidError`, which lists the commands, for an unknown command, and the errors of
    opening a table.
    """
    match line.rstrip("; ").split():
        case ["\\d"]:
            if not list_tables(lake, None, format):
                note(f"no tables in {lake.uri}")
        case ["\\d", name]:
            describe_table(Table.of(table_of(lake.catalog, name)), format)
        case ["\\x"]:
            format = Format.TABLE if format is Format.VERTICAL else Format.VERTICAL
            note(f"output format: {format.value}")
        case [word] if word.lower() in _HELP:
            note(_GUIDE)
        case _:
            raise InvalidError(f"unknown command {line}; the prompt has {', '.join(_ALL)}")
    return format
