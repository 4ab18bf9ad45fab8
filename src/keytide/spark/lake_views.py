"""The tables of a lake as temporary views of a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import Formatter
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from keytide.dml.attached import AttachedCatalog
from keytide.errors import InvalidError
from keytide.external.federated_changes import tables_of

__all__ = ["LakeOfTables", "register_lake"]

_PLACES = ("table", "database")


class LakeOfTables(Protocol):
    """What is asked of a lake."""

    @property
    def catalog(self) -> AttachedCatalog:
        """Its tables, and what is attached."""
        ...

    @property
    def exists(self) -> bool:
        """Whether there is anything."""
        ...

    def tables(self) -> list[str]:
        """The names of its own tables."""
        ...

    def table(self, name: str) -> Any:
        """A table by its name."""
        ...


def register_lake(
    spark: SparkSession,
    lake: LakeOfTables,
    tables: Sequence[str] | None = None,
    *,
    name: str = "{table}",
) -> dict[str, str]:
    """Make tables of a lake temporary views of a session; gives the table of each view.

    All tables of the lake, external ones too, and those of what is attached with a format; or the
    `tables` that are named. Temporary views are in no database, so `name` says what a view is
    called, made of `{table}` and `{database}`: the default is `orders` for `shop.orders`,
    `"{database}_{table}"` makes `shop_orders`.

    Every query reads what a table was when it was registered, each table at one snapshot, until the
    lake is registered again. Files that need no merge are read by Spark's own Parquet reader, with
    the columns and conditions of a query alone. Works on classic and Spark Connect sessions.

    Raises `InvalidError` for two tables whose views would have one name, before any view is made,
    and for a `name` that makes none; `NotFoundError` for a table that is not there, and what
    `scan` and `to_spark` raise.
    """
    chosen = _names(lake) if tables is None else list(dict.fromkeys(tables))
    views = _views(chosen, name)
    frames = {view: lake.table(table).scan().to_spark(spark) for view, table in views.items()}
    for view, frame in frames.items():
        _make(view, views[view], frame)
    return views


def _make(view: str, table: str, frame: DataFrame) -> None:
    try:
        frame.createOrReplaceTempView("`{}`".format(view.replace("`", "``")))
    except PySparkException as error:
        raise InvalidError(
            f"table {table} cannot become a view {view!r}; Spark says: {str(error).splitlines()[0]}"
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
                f"tables {other} and {each} would both be the view {view!r}; give a name that "
                f"tells them apart, such as name='{{database}}_{{table}}'"
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
            f"name is {name!r}; expected a text with {{table}}, and {{database}} perhaps, such as "
            f"'{{database}}_{{table}}'"
        )
