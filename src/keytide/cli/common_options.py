"""Arguments and options that commands share: the table, the cache, and where tasks run.

All commands follow one rule. An argument with a slash, or one that starts with `.` or `~`, is a
path or address. Any other argument is a name in the warehouse. Without a warehouse, it is the name
of a folder in the current directory.

Commands that are derived from table methods have the method's arguments and defaults as options.
Tasks run in threads of this process or as Spark jobs. Spark's own messages go to a file while a
command runs.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    ParamSpec,
    TypeVar,
    get_args,
)

import typer

from keytide.cli.command_group import CACHE_ARGUMENTS, CacheArguments
from keytide.cli.output import TABLE_ROWS, Format, TrackedThreads, note
from keytide.compaction.compact import local_runner
from keytide.errors import InvalidError, KeytideError, NotFoundError, SetupError
from keytide.lake.external_tables import ExternalTable, FederatedTable
from keytide.lake.opening import connect, open_table
from keytide.lake.table import Table
from keytide.lake.table_methods import member
from keytide.snapshot.stored_table import StoredTable
from keytide.tasks import TaskRunner

# -- the log of Spark's own messages ---------------------------------------------------------------


@contextmanager
def spark_log() -> Iterator[Path]:
    """The file of a log that is kept, and named on standard error, if a command ends unexpectedly.

    A `KeytideError` does not need it: its message says what happened and what to do.
    """
    handle, name = tempfile.mkstemp(prefix="keytide-spark-", suffix=".log")
    os.close(handle)
    path = Path(name)
    is_wanted = False
    try:
        yield path
    except KeytideError:
        raise
    except Exception:
        is_wanted = True
        note(f"Spark's own log is {path}")
        raise
    finally:
        if not is_wanted:
            path.unlink()


# -- shared arguments and options ------------------------------------------------------------------


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
    str | None, typer.Option(help="Comma-separated columns to read: id,status", show_default=False)
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


# -- the cache of the command line -----------------------------------------------------------------


def cache_arguments() -> CacheArguments:
    """The cache that the command line sets."""
    return CACHE_ARGUMENTS.get({"cache": None, "cache_bytes": None})


def refuse_cache(command: str) -> None:
    """A usage error if a cache is set for a command that does not use one."""
    if any(cache_arguments().values()):
        raise typer.BadParameter(
            f"--cache has no effect on {command}, which reads no table; remove it"
        )


# -- the table that an argument names --------------------------------------------------------------


_DATABASE_SUFFIX = ".db"
_NO_WAREHOUSE = "table names need a warehouse: use --warehouse or set KEYTIDE_WAREHOUSE"


def is_path(argument: str) -> bool:
    """Whether an argument is a path or address, and not a name."""
    return "/" in argument or argument.startswith((".", "~"))


def open_named_table(table: str, warehouse: str | None) -> Table:
    """The table at a path, or with that name in the warehouse. A path ignores the warehouse.

    Raises `NotFoundError`, which says what was found instead, if there is no such table. A name
    without a warehouse is a usage error.
    """
    if is_path(table) or (not warehouse and os.path.isdir(table)):
        try:
            return open_table(full_path(table), **cache_arguments())
        except NotFoundError as error:
            way = hint_to_enter(table)
            if not way and warehouse and not os.path.isabs(table):
                way = (
                    f"this is a path, not a table of {warehouse}, where a table is named "
                    "database.table"
                )
            raise NotFoundError(f"{error}; {way}" if way else str(error)) from error
    if not warehouse:
        raise typer.BadParameter(
            f"{_NO_WAREHOUSE}, or write the table's path (./{table} in the current directory)"
        )
    lake = connect(warehouse, **cache_arguments())
    return Table.of(lake.catalog.table(table), lake.spark, lake.catalog)


def open_readable_table(table: str, warehouse: str | None) -> Table | ExternalTable:
    """Like `open_named_table`, but a name can also be that of an external table."""
    if is_path(table) or not warehouse:
        return open_named_table(table, warehouse)
    found = connect(warehouse, **cache_arguments()).table(table)
    assert not isinstance(found, FederatedTable)  # nothing is attached
    return found


def split_table_path(table: str, warehouse: str | None) -> tuple[str, str]:
    """The warehouse and the name `database.table` of a table that may not exist.

    Raises `InvalidError` for a path that is not `warehouse/database.db/table`.
    """
    if not is_path(table):
        return required_warehouse(warehouse), table
    root, _, folders = full_path(table).rpartition(f"{_DATABASE_SUFFIX}/")
    parent, _, database = root.rpartition("/")
    if not parent or not database or not folders or "/" in folders:
        raise InvalidError(
            f"{table!r} is not a table of a warehouse; expected warehouse/database.db/table, or "
            "--warehouse and a name such as shop.orders"
        )
    return parent, f"{database}.{folders}"


def required_warehouse(warehouse: str | None) -> str:
    """The warehouse. If it is missing, a usage error says how to set it."""
    if not warehouse:
        raise typer.BadParameter(_NO_WAREHOUSE)
    return warehouse


def hint_to_enter(place: str) -> str:
    """The command that shows the table, database or warehouse at a path. Empty if there is none."""
    parent, _, name = full_path(place).rpartition("/")
    warehouse, _, above = parent.rpartition("/")
    if above.endswith(_DATABASE_SUFFIX):
        table = f"{above.removesuffix(_DATABASE_SUFFIX)}.{name}"
        if table in connect(warehouse).catalog.tables():
            return f"this is a table: keytide describe {place}"
    if name.endswith(_DATABASE_SUFFIX):
        return f"this is a database: keytide ls {parent} {name.removesuffix(_DATABASE_SUFFIX)}"
    if tables := connect(full_path(place)).catalog.tables():
        return f"this is a warehouse: keytide describe -w {place} {tables[0]}"
    return ""


def full_path(path: str) -> str:
    """The address, or the absolute path."""
    if "://" in path or path.startswith("file:"):
        return path.rstrip("/")
    return os.path.abspath(os.path.expanduser(path))


# -- commands derived from table methods -----------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = {
    "dry_run": typer.Option("--dry-run", help="Show what would be deleted, without doing it.")
}
"""The help of a parameter, for any method."""


def command(
    verb: Callable[Concatenate[StoredTable, P], T], **options: Any
) -> Callable[[Callable[[T, Format], None]], Callable[..., None]]:
    """A decorator of a function that shows what a verb gives: makes it the command.

    `options` say of parameters of the verb what people read of them; the docstring of the function
    is the help of the command.
    """
    carry_out: Callable[..., T] = member(verb)
    said = {**_OPTIONS, **options}
    _, *declared = inspect.signature(verb, eval_str=True).parameters.values()
    own = [_parameter("table", TableArgument), _parameter("warehouse", Warehouse, None)]
    for each in declared:
        # A string can express some types, such as a time.
        type_, choices = each.annotation, get_args(each.annotation)
        if str in choices:
            type_ = str | None if type(None) in choices else str
        own.append(_parameter(each.name, Annotated[type_, said[each.name]], each.default))
    own += [_parameter("format", FormatOption, Format.TABLE)]
    parameters = sorted(own, key=lambda each: each.default is not each.empty)

    def decorate(show: Callable[[T, Format], None]) -> Callable[..., None]:
        @wraps(verb)
        def run(table: str, warehouse: str | None, format: Format, **given: Any) -> None:
            show(carry_out(open_named_table(table, warehouse), **given), format)

        run.__name__, run.__doc__ = show.__name__, show.__doc__
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010  # no member that mypy knows
        return run

    return decorate


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> Any:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


# -- execution in threads of this process, or as Spark jobs ----------------------------------------


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|yarn|(spark|k8s|sc)://.+")


def _checked_master(master: str | None) -> str | None:
    if master is not None and not _MASTER.fullmatch(master):
        raise typer.BadParameter(
            f"{master!r} is not a Spark master; expected local[*], local[4], spark://host:7077, "
            "yarn, k8s://... or sc://host"
        )
    return master


SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="MASTER",
        callback=_checked_master,
        help="Run on Spark with one task per bucket: local[*], spark://host:7077, yarn, or "
        "sc://host for a Spark Connect server. Default: threads of this process. Requires pip "
        "install 'keytide[spark]'.",
        show_default=False,
    ),
]


@contextmanager
def task_runner(on_spark: str | None, what: str) -> Iterator[TaskRunner]:
    """Runs tasks within a block: in threads with a progress bar that counts `what`, or on a master.

    Raises `SetupError` if pyspark or Java is missing, or if Spark does not start.
    """
    if on_spark is None:
        yield TrackedThreads(local_runner(), what)
        return
    # Spark is an extra. If it is missing, the error of this import says how to install it.
    from keytide.spark.runner import Cluster

    with spark_log() as log:
        yield Cluster(spark_session(on_spark, log))


def spark_session(master: str | None, log: Path) -> SparkSession:
    """A session on a master, or a local one. Raises `SetupError` if Spark does not start.

    While it starts, this process and all processes that it starts write their standard error to the
    log. Spark's driver and its Python workers inherit it. No setting of Spark covers what they
    write before the setting is read, or outside of Spark's log.
    """
    from pyspark.errors import PySparkException

    from keytide.spark.error_translation import on_driver
    from keytide.spark.sessions import session

    kept, file = os.dup(2), os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.dup2(file, 2)
        with on_driver():
            if master is None:
                return session()
            return session({"remote" if master.startswith("sc://") else "master": master})
    except PySparkException as error:
        raise SetupError(
            f"Spark could not start with --spark {master or 'local[*]'}: {error}"
        ) from error
    finally:
        os.dup2(kept, 2)
        os.close(file)
        os.close(kept)
