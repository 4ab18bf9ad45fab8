"""Statements carried out, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
from sqlglot import exp

from keytide.errors import AlreadyExistsError, InvalidError
from keytide.sql.assign import assign
from keytide.sql.dml import delete, update
from keytide.sql.grammar import parse_statements
from keytide.sql.local import LocalEngine, run_locally
from keytide.sql.names import column_of, table_of
from keytide.sql.procedures import call
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.show import describe, explain, show
from keytide.sql.statements import (
    AlterTable,
    Call,
    CreateTable,
    Delete,
    Describe,
    DropTable,
    Explain,
    Insert,
    Query,
    Rows,
    Show,
    Statement,
    Truncate,
    Update,
)
from keytide.table.host import spark_sql
from keytide.table.lake import Lake
from keytide.table.result import Result, changed
from keytide.table.table import Table

__all__ = ["results", "run"]


class Engine(Protocol):
    """What computes queries: DuckDB in this process, or Spark."""

    def query(self, bound: BoundQuery) -> Result:
        """Run a query."""
        ...

    def rows(self, bound: BoundQuery) -> Any:
        """The rows of a query for an INSERT: an Arrow table or a Spark DataFrame."""
        ...

    def assigned(self, rows: Any, columns: Mapping[str, int | pa.Scalar], table: Table) -> Any:
        """Rows in a table's columns, each taken by position or from a constant."""
        ...


def run(lake: Lake, text: str) -> Result:
    """Carry out a SQL text; the result is that of its last statement. Raises as `results`."""
    given = deque(results(lake, text), maxlen=1)
    if not given:
        raise InvalidError("the SQL text has no statement")
    return given[0]


def results(lake: Lake, text: str) -> Iterator[Result]:
    """Carry out the statements of a SQL text, one for each result that is taken.

    All of the text is parsed before anything is done. Each statement is atomic; when one fails,
    those before it stay done. Raises `InvalidError` pointing at the place that does not parse,
    and what the statements themselves raise.
    """
    statements = parse_statements(text)
    engine: Engine = _local(lake) if lake.spark is None else spark_sql().SparkEngine(lake.spark)
    return (_carried_out(lake, engine, statement) for statement in statements)


def _local(lake: Lake) -> LocalEngine:
    return LocalEngine(lake.allows_external_files)


def _carried_out(lake: Lake, engine: Engine, statement: Statement) -> Result:
    try:
        return _ACTIONS[type(statement)](lake, engine, statement)
    except RecursionError as error:
        raise InvalidError("a statement is nested too deeply to be carried out") from error


def _query(lake: Lake, engine: Engine, statement: Query) -> Result:
    return engine.query(bind(statement, lake))


def _explain(lake: Lake, engine: Engine, statement: Explain) -> Result:
    return explain(bind(statement.query, lake))


# -- definitions -----------------------------------------------------------------------------------


def _create(lake: Lake, engine: Engine, statement: CreateTable) -> Result:
    known = lake.find(statement.name)
    if known is not None and statement.exists_ok:
        return changed()
    if known is not None:
        raise AlreadyExistsError(f"table {known} exists; drop it, or choose another name")
    if statement.query is not None:
        return _create_as(lake, engine, statement, statement.query)
    source = None if statement.like is None else table_of(lake, statement.like)
    _create_empty(lake, statement, source)
    return changed()


def _create_empty(lake: Lake, statement: CreateTable, source: Table | None) -> Table:
    columns, keys = statement.columns, statement.primary_key
    partitions, options = statement.partition_by, dict(statement.options)
    if source is not None:
        schema = source.table_schema
        columns = (*schema.fields, *columns)
        keys, partitions = keys or schema.primary_keys, partitions or schema.partition_keys
        options = {**schema.options, **options}
    return lake.create_table(
        statement.name,
        columns,
        primary_key=keys,
        partition_by=partitions,
        options=options,
        comment=statement.comment,
        exists_ok=statement.exists_ok,
    )


def _create_as(lake: Lake, engine: Engine, statement: CreateTable, query: Query) -> Result:
    if statement.columns:
        raise InvalidError(
            f"table {statement.name}: CREATE TABLE ... AS takes its columns from the query; leave "
            f"the list of columns out (PRIMARY KEY may stay)"
        )
    rows = engine.rows(bind(query, lake))
    written = lake.create_table_as(
        statement.name,
        rows,
        rows.schema if isinstance(rows, pa.Table) else spark_sql().arrow_schema(rows),
        primary_key=statement.primary_key,
        partition_by=statement.partition_by,
        options=statement.options,
        comment=statement.comment,
    )
    return changed(written.rows)


def _alter(lake: Lake, engine: Engine, statement: AlterTable) -> Result:
    table_of(lake, statement.table).alter(*statement.changes)
    return changed()


def _drop(lake: Lake, engine: Engine, statement: DropTable) -> Result:
    name = lake.find(statement.table) or statement.table
    lake.drop_table(name, missing_ok=statement.missing_ok)
    return changed()


def _truncate(lake: Lake, engine: Engine, statement: Truncate) -> Result:
    table_of(lake, statement.table).truncate()
    return changed()


# -- INSERT ----------------------------------------------------------------------------------------


def _insert(lake: Lake, engine: Engine, statement: Insert) -> Result:
    table = table_of(lake, statement.table)
    chosen, rows = _rows(lake, engine, statement)
    columns = _assignment(statement, table, _width(rows))
    assigned = chosen.assigned(rows, columns, table)
    if not statement.overwrite:
        return changed(table.write(assigned).rows)
    static = _static_partition(statement, table)
    return changed(table.overwrite(assigned, static or None).rows)


def _rows(lake: Lake, engine: Engine, statement: Insert) -> tuple[Engine, Any]:
    """The rows to insert, and the engine that they are rows of."""
    local = _local(lake)
    if isinstance(statement.query, Rows):
        return local, statement.query.rows
    bound = bind(statement.query, lake)
    if not bound.tree.find(exp.Table):  # a row of computed values needs no cluster
        return local, local.rows(bound)
    if statement.overwrite:  # takes local rows
        return local, engine.query(bound).to_arrow()
    return engine, engine.rows(bound)


def _width(rows: Any) -> int:
    return int(rows.num_columns if isinstance(rows, pa.Table) else len(rows.columns))


def _assignment(statement: Insert, table: Table, width: int) -> dict[str, int | pa.Scalar]:
    """Where each column of the table comes from: a place in the query, or a constant."""
    fields = {f.name: f for f in table.table_schema.fields}
    constants = _static_partition(statement, table)
    named = [column_of(name, fields, table.name) for name in statement.columns]
    targets = named or [name for name in fields if name not in constants]
    if len(set(targets)) < len(targets) or set(targets) & set(constants):
        raise InvalidError(f"table {table.name}: a column is given twice in {statement.columns}")
    if len(targets) != width:
        raise InvalidError(
            f"table {table.name}: the query gives {width} column(s), the statement names "
            f"{len(targets)}: {', '.join(targets)}"
        )
    places: dict[str, int | pa.Scalar] = {name: i for i, name in enumerate(targets)}
    for name, field in fields.items():
        if name in constants:
            places[name] = constants[name]
        elif name not in places:
            places[name] = pa.scalar(None, field.type.to_arrow())
    return {name: places[name] for name in fields}


def _static_partition(statement: Insert, table: Table) -> dict[str, pa.Scalar]:
    """The values of PARTITION (...), as the columns hold them."""
    fields = {f.name: f for f in table.table_schema.fields}
    values: dict[str, pa.Scalar] = {}
    for given, tree in statement.partition.items():
        name = column_of(given, fields, table.name)
        if name not in table.partition_by:
            raise InvalidError(
                f"table {table.name}: PARTITION names {name!r}, which is no partition column; "
                f"those are: {', '.join(table.partition_by) or 'none'}"
            )
        if tree is not None:
            rows = run_locally(BoundQuery(exp.select(tree)))
            if rows.num_rows != 1:
                raise InvalidError(
                    f"table {table.name}: PARTITION gives {rows.num_rows} values for {name!r}; "
                    f"expected one"
                )
            values[name] = assign(rows.column(0), fields[name], table.name)[0]
    return values


def _delete(lake: Lake, engine: Engine, statement: Delete) -> Result:
    return changed(delete(lake, engine.query, statement))


def _update(lake: Lake, engine: Engine, statement: Update) -> Result:
    return changed(update(lake, engine.query, statement))


# -- the rest --------------------------------------------------------------------------------------


def _show(lake: Lake, engine: Engine, statement: Show) -> Result:
    return _listed(show(lake, statement))


def _describe(lake: Lake, engine: Engine, statement: Describe) -> Result:
    return _listed(describe(table_of(lake, statement.table), extended=statement.extended))


def _call(lake: Lake, engine: Engine, statement: Call) -> Result:
    return _listed(call(lake, statement))


def _listed(rows: pa.Table) -> Result:
    return Result(rows)


_ACTIONS: dict[type, Callable[[Lake, Engine, Any], Result]] = {
    Query: _query,
    Explain: _explain,
    CreateTable: _create,
    AlterTable: _alter,
    DropTable: _drop,
    Truncate: _truncate,
    Insert: _insert,
    Delete: _delete,
    Update: _update,
    Show: _show,
    Describe: _describe,
    Call: _call,
}
