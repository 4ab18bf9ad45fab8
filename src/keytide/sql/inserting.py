"""INSERT into an attached table, through its connector."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from keytide.base.plural import counted
from keytide.dml.attached import AttachedCatalog
from keytide.dml.execution import Changed
from keytide.dml.insert import insert_rows
from keytide.errors import InvalidError, UnsupportedError
from keytide.sql.assign import stored_values
from keytide.sql.dml import Target, on_newest
from keytide.sql.local_engine import LocalEngine
from keytide.sql.names import column_of
from keytide.sql.query_engine import Engine
from keytide.sql.relations import bind
from keytide.sql.statements import Insert, Rows
from keytide.types import Field

__all__ = ["insert_attached"]

Take = Callable[[pa.RecordBatch], None]


def insert_attached(catalog: AttachedCatalog, engine: Engine, statement: Insert) -> Changed:
    """Insert rows into an attached table in one transaction. The rows are streamed.

    Raises `UnsupportedError` for OVERWRITE and for a connector without inserts, and `InvalidError`
    for types and values that a column does not accept. Nothing is inserted then.
    """
    if statement.overwrite or statement.partition:
        raise UnsupportedError(
            f"table {statement.table} is attached: INSERT supports neither OVERWRITE nor "
            "PARTITION there; DELETE the old rows first"
        )

    def once(target: Target) -> Changed:
        fields = _fields(statement, target)

        def feed(take: Take) -> None:
            _feed(target.catalog, engine, statement, _stored(fields, target.name, take))

        names = [field.name for field in fields]
        return insert_rows(target.connector, target.session, target.handle, names, feed)

    return on_newest(catalog, statement.table, "snapshot", None, once)


def _fields(statement: Insert, target: Target) -> list[Field]:
    """The columns that get values, in the order of the values."""
    by_name = {field.name: field for field in target.fields}
    named = [column_of(name, by_name, target.name) for name in statement.columns]
    if len(set(named)) < len(named):
        raise InvalidError(
            f"table {target.name}: INSERT names a column twice: {', '.join(statement.columns)}; "
            "name each once"
        )
    return [by_name[name] for name in named or by_name]


def _stored(fields: list[Field], table: str, take: Take) -> Take:
    """A consumer that converts rows to the types of the columns and passes them on."""

    def stored(rows: pa.RecordBatch) -> None:
        if rows.num_columns != len(fields):
            names = ", ".join(field.name for field in fields)
            raise InvalidError(
                f"table {table}: the query returns {counted(rows.num_columns, 'column')}, but "
                f"the statement names {len(fields)}: {names}"
            )
        values = stored_values(pa.table(rows.columns, [*map(str, range(len(fields)))]).columns,
                               fields, table)  # fmt: skip
        take(pa.record_batch(values, [field.name for field in fields]))

    return stored


def _feed(catalog: AttachedCatalog, engine: Engine, statement: Insert, take: Take) -> None:
    if isinstance(statement.query, Rows):
        for page in statement.query.rows.to_batches():
            take(page)
        return
    bound = bind(statement.query, catalog)
    is_local = not bound.tree.find(exp.Table)  # constants need no cluster
    (LocalEngine(catalog.allows_external_files) if is_local else engine).stream(bound, take)
