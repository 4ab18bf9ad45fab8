"""The command `keytide`: its commands, each with a short help and the room that it is in.

Loading every command takes longer than a small one runs. So lists of commands show what is written
here, and a room is loaded when one of its commands is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

import keytide
from keytide.cli.command_group import CACHE_ARGUMENTS, CommandGroup, run
from keytide_command import importing

_COMMANDS = (
    ("ls", "inspection", "List the tables of a warehouse or of one database."),
    ("describe", "inspection", "Show the columns, keys, options and size of a table."),
    ("scan", "inspection", "Read the rows of a table, one merged row per key."),
    ("get", "inspection", "Look up the row of one key."),
    ("why", "inspection", "Explain how the row of a key was merged."),
    ("snapshots", "inspection", "List the snapshots of a table, latest first."),
    ("history", "inspection", "List what each commit did to a table, latest first."),
    ("rollback", "maintenance", "Roll a table back to a snapshot, a tag or a time."),
    ("restore", "maintenance", "Restore an earlier state in a new commit."),
    ("expire", "maintenance", "Expire old snapshots and delete unused files."),
    ("expire-partitions", "maintenance", "Drop the expired partitions of a table."),
    ("orphans", "maintenance", "List the orphan files of a table, or delete them."),
    ("publish", "maintenance", "Publish a table as Delta Lake or Apache Iceberg."),
    ("purge-files", "maintenance", "Delete all rows and the history of a table."),
    ("rewrite-file-index", "maintenance", "Create missing bloom filters of a table's files."),
    ("explain", "inspection", "Show the plan of a scan without reading data."),
    ("compact", "maintenance", "Merge the files of a table into fewer, larger ones."),
    ("convert", "maintenance", "Convert a table between merge on read and a key index."),
    ("verify", "maintenance", "Check everything that is stored for a table."),
    ("doctor", "maintenance", "Check the health of a table and recommend maintenance."),
    ("upsert-estimate", "maintenance", "Estimate the size of a key index."),
    ("sql", "sql_and_ui", "Run SQL statements on the tables of a warehouse."),
    ("ingest", "feeds", "Load change data into a table."),
    ("lag", "feeds", "Show how far a table is behind its Kafka topics."),
    ("ui", "sql_and_ui", "Show a warehouse in the browser."),
    ("tag", "tags_and_branches", "Manage tags: named snapshots that do not expire."),
    ("consumer", "tags_and_branches", "Manage consumers: stored positions of readers."),
    ("branch", "tags_and_branches", "Manage the branches of a table."),
)
"""The name, the room and the short help of each command, in the order of `keytide --help`."""


def load_command(name: str) -> Any:
    """A command, or a group of commands, as the library for command lines has it."""
    rooms = {command: room for command, room, _ in _COMMANDS}
    with importing():
        found = getattr(import_module(f"keytide.cli.{rooms[name]}"), name.replace("-", "_"))
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found)
    else:
        alone.command()(found)
    return typer.main.get_group(alone).commands[name]


class _Commands(CommandGroup):
    """Lists names and short helps. Only a called command is loaded."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The called command, its name and its arguments. Shells also complete its options."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else load_command(name), rest


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


def _entry() -> None:
    """A command in lists."""


for _name, _, _short_help in _COMMANDS:
    app.command(_name, help=_short_help)(_entry)


def main() -> None:
    """Run the command line and exit."""
    run(app)


if __name__ == "__main__":
    main()
