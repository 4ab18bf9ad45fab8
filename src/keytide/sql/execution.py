"""Execution of statements in order, with INSERT into attached tables through their connectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
from sqlglot import exp

from keytide.base.record import rows_of
from keytide.base.text import counted
from keytide.catalogs.catalog import NewTable
from keytide.catalogs.local_writes import truncate
from keytide.catalogs.schema_changes import add_constraint, alter_table, drop_constraint
from keytide.commit.change import Author
from keytide.commit.transaction import WriteResult, warn_of_errors
from keytide.definition.schema_evolution import ChangeComment
from keytide.dml.assignment import assign, stored_values
from keytide.dml.attachments import AttachedCatalog, table_of
from keytide.dml.engine import Changed, insert_rows
from keytide.dml.row_statements import Target, run_on_latest
from keytide.errors import AlreadyExistsError, InvalidError, UnsupportedError
from keytide.feeds.flow import FlowRequest
from keytide.maintenance.history import HistoryEntry, history_of
from keytide.predicate.predicate import column_of
from keytide.snapshot.stored_table import StoredTable
from keytide.sources.external_definitions import NewExternalTable, create_external
from keytide.sql import statements
from keytide.sql.cursor import parser_errors
from keytide.sql.engine_text import refuse_location
from keytide.sql.grammar import create_version_name, drop_version_name, parse_statements
from keytide.sql.local_engine import LocalEngine
from keytide.sql.local_query import run_locally
from keytide.sql.procedures import call
from keytide.sql.query_engine import Engine
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.result import ChangeResult, LocalResult, Result
from keytide.sql.row_changes import analyze_change, change, explain_change, merge
from keytide.sql.show_statements import (
    create_view,
    describe,
    describe_database,
    explain,
    plan_rows,
    show,
    view_description,
)
from keytide.telemetry import span
from keytide.types import Field

# -- INSERT into attached tables -------------------------------------------------------------------


Take = Callable[[pa.RecordBatch], None]


def insert_attached(
    catalog: AttachedCatalog, engine: Engine, statement: statements.Insert
) -> Changed:
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
        # The columns that get values, in the order of the values.
        by_name = {field.name: field for field in target.fields}
        named = [column_of(name, by_name, target.name) for name in statement.columns]
        if len(set(named)) < len(named):
            raise InvalidError(
                f"table {target.name}: INSERT names a column twice: "
                f"{', '.join(statement.columns)}; name each once"
            )
        names = named or [*by_name]

        def feed(take: Take) -> None:
            store = _stored([by_name[name] for name in names], target.name, take)
            if isinstance(statement.query, statements.Rows):
                for page in statement.query.rows.to_batches():
                    store(page)
                return
            bound = bind(statement.query, target.catalog)
            is_local = not bound.tree.find(exp.Table)  # constants need no cluster
            local = LocalEngine(target.catalog.allows_external_files)
            (local if is_local else engine).stream(bound, store)

        return insert_rows(target.connector, target.session, target.handle, names, feed)

    return run_on_latest(catalog, statement.table, "snapshot", None, once)


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


# -- statements ------------------------------------------------------------------------------------


class Session(Protocol):
    """The session that statements run in."""

    @property
    def catalog(self) -> AttachedCatalog:
        """The tables, and the current database."""
        ...

    def use(self, database: str) -> None:
        """Set the current database. Raises as `database_of`."""
        ...


def run(session: Session, engine: Engine, text: str) -> Result:
    """Run an SQL text and return the result of its last statement. Raises as `results`."""
    given = deque(results(session, engine, text), maxlen=1)
    if not given:
        raise InvalidError("the SQL text contains no statement; write one, such as SHOW TABLES")
    return given[0]


def results(session: Session, engine: Engine, text: str) -> Iterator[Result]:
    """Run the statements of an SQL text lazily, one for each result that is consumed.

    The whole text is parsed first. Each statement is atomic. If one fails, the effects of the
    statements before it stay. Raises `InvalidError`, with the position, for text that does not
    parse, and what the statements raise.
    """
    parsed = parse_statements(text)
    return (_run_statement(session, engine, statement) for statement in parsed)


def _run_statement(session: Session, engine: Engine, statement: statements.Statement) -> Result:
    if isinstance(statement, statements.Use):
        session.use(statement.database)
        return ChangeResult()
    try:
        with parser_errors(), span("sql", statement=type(statement).__name__):
            return _result(session.catalog, engine, statement)
    except RecursionError as error:
        raise InvalidError(
            "a statement is nested too deeply; split it into several statements"
        ) from error


def _result(catalog: AttachedCatalog, engine: Engine, statement: statements.Statement) -> Result:
    match statement:
        case statements.Query():
            return engine.query(bind(statement, catalog))
        case statements.Explain():
            query = statement.query
            if isinstance(query, statements.Query):
                bound = bind(query, catalog)
                if statement.analyze:
                    return plan_rows(engine.analyze(bound).lines())
                return explain(bound)
            explained = analyze_change if statement.analyze else explain_change
            return explained(catalog, engine, query)
        case statements.Insert():
            return _insert(catalog, engine, statement)
        case statements.Delete() | statements.Update():
            return ChangeResult(change(catalog, engine, statement).rows)
        case statements.Merge():
            return ChangeResult(merge(catalog, engine, statement).rows)
        case statements.ApplyEvents():
            return _apply_events(catalog, engine, statement)
        case statements.Show():
            return LocalResult(show(catalog.pinned(), statement))
        case statements.Describe():
            return _describe(catalog, engine, statement)
        case statements.DescribeDatabase():
            return LocalResult(describe_database(catalog, statement.database))
        case statements.DescribeHistory():
            table = table_of(catalog.pinned(), statement.table)
            return LocalResult(rows_of(HistoryEntry, history_of(table.metadata, statement.limit)))
        case statements.Call():
            return LocalResult(call(catalog, statement))
        case statements.CreateTable():
            return _create(catalog, engine, statement)
        case statements.CreateExternalTable():
            return _create_external(catalog, engine, statement)
        case _:
            _define(catalog, engine, statement)
            return ChangeResult()


# -- definitions -----------------------------------------------------------------------------------


def _define(catalog: AttachedCatalog, engine: Engine, statement: statements.Statement) -> None:
    """Run a statement that changes a definition and gives no rows."""
    match statement:
        case statements.AlterTable():
            alter_table(table_of(catalog, statement.table).metadata, statement.changes)
        case statements.AddConstraint():
            add_constraint(table_of(catalog, statement.table), statement.name, statement.condition)
        case statements.DropConstraint():
            table = table_of(catalog, statement.table)
            drop_constraint(table, statement.name, missing_ok=statement.missing_ok)
        case statements.RenameTable():
            name = catalog.find(statement.table) or statement.table
            catalog.rename_table(name, statement.new_name)
        case statements.DropTable():
            name = catalog.find(statement.table) or statement.table
            catalog.drop_table(name, missing_ok=statement.missing_ok)
        case statements.Truncate():
            table = table_of(catalog.pinned(), statement.table)
            truncate(table, [_partition_values(each, table) for each in statement.partitions])
        case statements.CommentOn():
            _comment(catalog, statement)
        case statements.CreateView():
            create_view(catalog, engine, statement)
        case statements.DropView():
            catalog.drop_view(statement.name, missing_ok=statement.missing_ok)
        case statements.CreateDatabase():
            exists_ok = statement.exists_ok
            catalog.create_database(statement.name, statement.comment, exists_ok=exists_ok)
        case statements.DropDatabase():
            missing_ok, cascade = statement.missing_ok, statement.cascade
            catalog.drop_database(statement.name, missing_ok=missing_ok, cascade=cascade)
        case statements.CreateVersionName():
            create_version_name(table_of(catalog.pinned(), statement.table), statement)
        case statements.DropVersionName():
            drop_version_name(table_of(catalog.pinned(), statement.table), statement)
        case _:
            raise AssertionError(statement)


def _create(catalog: AttachedCatalog, engine: Engine, statement: statements.CreateTable) -> Result:
    catalog = catalog.pinned()
    known = catalog.find(statement.name)
    if known is not None and statement.exists_ok:
        return ChangeResult()
    if known is not None:
        raise AlreadyExistsError(f"table {known} already exists; drop it, or choose another name")
    if statement.query is not None:
        if statement.columns:
            raise InvalidError(
                f"table {statement.name}: CREATE TABLE ... AS takes its columns from the query; "
                "remove the column list (PRIMARY KEY is allowed)"
            )
        rows = engine.rows(bind(statement.query, catalog))
        wanted = NewTable(
            engine.schema(rows),
            statement.primary_key,
            statement.partition_by,
            statement.options,
            statement.comment,
        )
        written = catalog.create_filled(
            statement.name, wanted, lambda transaction: engine.fill(transaction, rows)
        )
        return _write_result(statement.name, written)
    columns, primary_key = statement.columns, statement.primary_key
    partitions, options = statement.partition_by, dict(statement.options)
    if statement.like is not None:
        schema = table_of(catalog, statement.like).schema
        columns, primary_key = (*schema.fields, *columns), primary_key or schema.primary_keys
        partitions = partitions or schema.partition_keys
        options = {**schema.options, **options}
    wanted = NewTable(columns, primary_key, partitions, options, statement.comment)
    catalog.create_table(statement.name, wanted, exists_ok=statement.exists_ok)
    return ChangeResult()


def _create_external(
    catalog: AttachedCatalog, engine: Engine, statement: statements.CreateExternalTable
) -> Result:
    known = catalog.find(statement.name)
    if known is not None and statement.exists_ok:
        return ChangeResult()
    if known is not None:
        raise AlreadyExistsError(f"table {known} already exists; drop it, or choose another name")
    refuse_location(
        catalog, statement.name, statement.format, statement.location, statement.options
    )
    wanted = NewExternalTable(
        statement.format,
        statement.location,
        statement.primary_key,
        statement.columns,
        statement.options,
        statement.comment,
    )
    create_external(catalog, statement.name, wanted, exists_ok=statement.exists_ok)
    return ChangeResult()


def _comment(catalog: AttachedCatalog, statement: statements.CommentOn) -> None:
    path = statement.path
    places = len(path)
    if statement.kind == "COLUMN":
        # `a.b.c` is column c of table a.b if that table exists, otherwise a field of column b.
        places = 2 if len(path) > 2 and catalog.find(".".join(path[:2])) is not None else 1
    table = table_of(catalog, ".".join(path[:places]))
    column = path[places:]
    if column:
        column = (column_of(column[0], table.schema.names, table.name), *column[1:])
    alter_table(table.metadata, [ChangeComment(statement.comment, column)])


# -- INSERT ----------------------------------------------------------------------------------------


def _insert(catalog: AttachedCatalog, engine: Engine, statement: statements.Insert) -> Result:
    if catalog.find_attached(statement.table) is not None:
        return ChangeResult(insert_attached(catalog, engine, statement).rows)
    catalog = catalog.pinned()
    table = table_of(catalog, statement.table)
    chosen, rows = _rows(catalog, engine, statement)

    # The source of each table column: a position in the query, or a constant.
    width = len(chosen.schema(rows))
    fields = {f.name: f for f in table.schema.fields}
    constants = _partition_values(statement.partition, table)
    named = [column_of(name, fields, table.name) for name in statement.columns]
    targets = named or [name for name in fields if name not in constants]
    if len(set(targets)) < len(targets) or set(targets) & set(constants):
        raise InvalidError(
            f"table {table.name}: INSERT names a column twice, in its column list "
            f"({', '.join(statement.columns)}) and in its PARTITION ({', '.join(constants)}); "
            "name each once"
        )
    if len(targets) != width:
        raise InvalidError(
            f"table {table.name}: the query returns {counted(width, 'column')}, but the "
            f"statement names {len(targets)}: {', '.join(targets)}"
        )
    places: dict[str, int | pa.Scalar] = {name: i for i, name in enumerate(targets)}
    for name, field in fields.items():
        if name in constants:
            places[name] = constants[name]
        elif name not in places:
            places[name] = pa.scalar(None, field.type.to_arrow())
    columns = {name: places[name] for name in fields}
    assigned = chosen.assigned(rows, columns, table)
    if statement.overwrite:
        static = _partition_values(statement.partition, table)
        return _write_result(table.name, chosen.overwrite(table, assigned, static or None))
    return _write_result(table.name, chosen.append(table, assigned))


def _write_result(table: str, result: WriteResult) -> Result:
    """The result of a write. Rows that were skipped as errors cause a warning."""
    warn_of_errors(table, result)
    return ChangeResult(result.rows - sum((result.errors or {}).values()))


def _rows(
    catalog: AttachedCatalog, engine: Engine, statement: statements.Insert
) -> tuple[Engine, Any]:
    """The rows to insert, and the engine that has them."""
    local = LocalEngine(catalog.allows_external_files)
    if isinstance(statement.query, statements.Rows):
        return local, statement.query.rows
    bound = bind(statement.query, catalog)
    if not bound.tree.find(exp.Table):  # constants need no cluster
        return local, local.rows(bound)
    return engine, engine.rows(bound)


def _partition_values(
    partition: Mapping[str, exp.Expr | None], table: StoredTable
) -> dict[str, pa.Scalar]:
    """The values of PARTITION (...), in the types of the columns."""
    fields = {f.name: f for f in table.schema.fields}
    values: dict[str, pa.Scalar] = {}
    for given, tree in partition.items():
        name = column_of(given, fields, table.name)
        if name not in table.schema.partition_keys:
            raise InvalidError(
                f"table {table.name}: PARTITION names {name!r}, which is not a partition column; "
                f"partition columns: {', '.join(table.schema.partition_keys) or 'none'}"
            )
        if tree is not None:
            rows = run_locally(BoundQuery(exp.select(tree)))
            if rows.num_rows != 1:
                raise InvalidError(
                    f"table {table.name}: PARTITION gives {counted(rows.num_rows, 'value')} for "
                    f"{name!r}; expected one"
                )
            values[name] = assign(rows.column(0), fields[name], table.name)[0]
    return values


def _apply_events(
    catalog: AttachedCatalog, engine: Engine, statement: statements.ApplyEvents
) -> Result:
    rows = engine.rows(bind(statement.source, catalog.pinned()))
    known = engine.schema(rows).names

    def columns(named: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if named is None else tuple(column_of(n, known, "of the source") for n in named)

    request = FlowRequest(
        target=catalog.find(statement.target) or statement.target,
        keys=columns(statement.keys) or (),
        sequence_by=columns(statement.sequence_by) or (),
        deletes=statement.deletes,
        truncates=statement.truncates,
        columns=columns(statement.columns),
        except_columns=columns(statement.except_columns),
        ignores_nulls=statement.ignores_nulls,
        scd_type=statement.scd_type,
        tracked=columns(statement.tracked),
        except_tracked=columns(statement.except_tracked),
    )
    author = None if statement.flow is None else Author.fresh(f"{statement.flow}-")
    return _write_result(request.target, engine.apply_events(catalog, request, rows, author))


# -- other statements ------------------------------------------------------------------------------


def _describe(catalog: AttachedCatalog, engine: Engine, statement: statements.Describe) -> Result:
    catalog = catalog.pinned()
    try:
        return LocalResult(describe(catalog, statement.table, extended=statement.extended))
    except UnsupportedError:
        if (view := catalog.find_view(statement.table)) is None:
            raise
        return LocalResult(view_description(catalog, engine, view, extended=statement.extended))
