"""The tables of a lake as temporary views of a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import Formatter
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from keytide.base.arguments import check_spark_session
from keytide.dml.attached import AttachedCatalog
from keytide.errors import InvalidError
from keytide.sources.federated_changes import tables_of
from keytide.spark.connect import is_apache_spark
from keytide.spark.errors import reason_of
from keytide.spark.source import FORMAT
from keytide.spark.view_statements import note_view
from keytide.spark.views import keep_views_new

__all__ = ["LakeOfTables", "register_lake"]

_PLACES = ("table", "database")


class LakeOfTables(Protocol):
    """The part of a lake that this module needs."""

    @property
    def catalog(self) -> AttachedCatalog:
        """The lake's tables, and what is attached."""
        ...

    @property
    def exists(self) -> bool:
        """Whether the warehouse exists."""
        ...

    def tables(self) -> list[str]:
        """The names of the lake's own tables."""
        ...

    def table(self, name: str) -> Any:
        """A table by name."""
        ...


def register_lake(
    spark: SparkSession,
    lake: LakeOfTables,
    tables: Sequence[str] | None = None,
    *,
    name: str = "{table}",
) -> dict[str, str]:
    """Register the tables of a lake as temporary views of a session. Returns the table of each
    view.

    `tables` are the tables to register. By default these are all tables of the lake, including
    external ones, and those of attachments with a format. Temporary views have no database, so
    `name` is a template for the view name with `{table}` and `{database}`: the default names the
    view of `shop.orders` `orders`, and `"{database}_{table}"` names it `shop_orders`.

    Every query reads the state of a table when it was registered, each table at one snapshot.
    Register the lake again to see later snapshots. Files that need no merge are read by Spark's own
    Parquet reader, with only the columns and conditions of a query. Works in classic and Spark
    Connect sessions.

    Raises `InvalidError` when the views of two tables would have the same name, before any view is
    created, for an invalid `name`, and for anything but a session. Raises
    `NotFoundError` for a table that does not exist, and what `scan` and `to_spark` raise.
    """
    check_spark_session(spark, "register_lake")
    keep_views_new(FORMAT)
    chosen = _names(lake) if tables is None else list(dict.fromkeys(tables))
    views = _views(chosen, name)
    frames = {view: lake.table(table).scan().to_spark(spark) for view, table in views.items()}
    for view, frame in frames.items():
        _make(view, views[view], frame)
        note_view(spark, view, views[view])
    return views


def _make(view: str, table: str, frame: DataFrame) -> None:
    # Other servers take a name as it is.
    is_parsed = is_apache_spark(frame.sparkSession)
    name = "`{}`".format(view.replace("`", "``")) if is_parsed else view
    try:
        frame.createOrReplaceTempView(name)
    except PySparkException as error:
        raise InvalidError(
            f"table {table} cannot become a view {view!r}; Spark says: {reason_of(error)}"
        ) from error


def _names(lake: LakeOfTables) -> list[str]:
    found = lake.tables() if lake.exists else []
    for attached, connector in lake.catalog.attached.items():
        known = tables_of(connector)
        found += [f"{attached}.{table}" for table in sorted(known.tables if known else ())]
    return found


def _views(tables: Iterable[str], name: str) -> dict[str, str]:
    _check_name(name)
    views: dict[str, str] = {}
    lowered: dict[str, str] = {}
    for each in tables:
        database, _, table = each.rpartition(".")
        view = name.format(table=table, database=database or "default")
        other = lowered.setdefault(view.lower(), each)
        if other != each:
            raise InvalidError(
                f"tables {other} and {each} would both become the view {view!r}; set a name that "
                "distinguishes them, such as name='{database}_{table}'"
            )
        views[view] = each
    return views


def _check_name(name: str) -> None:
    try:
        places = [place for _, place, _, _ in Formatter().parse(name) if place is not None]
    except ValueError as error:
        raise InvalidError(f"name is {name!r}: {error}") from None
    if not places or any(place not in _PLACES for place in places):
        raise InvalidError(
            f"name is {name!r}; expected a string with {{table}}, and optionally {{database}}, "
            "such as '{database}_{table}'"
        )
