"""DELETE, UPDATE and MERGE: from a statement to row changes through the table's connector.

A statement that meets a conflict is retried on the latest rows, as often as the table's
'commit.max-retries' allows, or ten times for a table of an attached connector. So two concurrent
statements never undo each other. A trace receives every call to the connector.

EXPLAIN of DELETE, UPDATE and MERGE: the plan or, with ANALYZE, what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from sqlglot import exp

from keytide.base.text import counted
from keytide.definition.kind import kind_of
from keytide.definition.schema_evolution import AddColumn, ChangeColumnType, SchemaChange
from keytide.dml.append import appended_connector
from keytide.dml.attach import AttachedCatalog, target_of
from keytide.dml.engine import Changed, DeleteRows, RowChange, UpdateRows, change_rows, merge_rows
from keytide.dml.keyed import keyed_connector
from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorSession,
    ConnectorTableHandle,
    ConnectorTableSchema,
    Isolation,
)
from keytide.dml.trace import Trace, traced
from keytide.errors import ConflictError, UnsupportedError
from keytide.options import TableOptions
from keytide.predicate.text import text_of
from keytide.sql.cursor import Keytide
from keytide.sql.evolving import Evolution, evolution_of, evolved
from keytide.sql.merge_query import merge_query
from keytide.sql.names import column_of, table_of
from keytide.sql.query_engine import Engine, Means
from keytide.sql.relation import Relation
from keytide.sql.result import Result
from keytide.sql.row_query import RowQuery, row_query
from keytide.sql.show import plan_rows
from keytide.sql.statements import Delete, Merge, Update
from keytide.types import Field, type_from_arrow

# -- DELETE, UPDATE and MERGE ----------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """The table that a statement changes, at its latest state."""

    name: str
    catalog: AttachedCatalog
    """The catalog that the statement reads from."""
    connector: Connector
    session: ConnectorSession
    handle: ConnectorTableHandle
    fields: tuple[Field, ...] = ()
    """The columns with SQL types."""
    means: Means = field(default_factory=Means)
    schema: ConnectorTableSchema = field(init=False)

    def __post_init__(self) -> None:
        schema = self.connector.metadata.get_table_schema(self.session, self.handle)
        object.__setattr__(self, "schema", schema)
        if not self.fields:
            object.__setattr__(self, "fields", tuple(map(_field, schema.columns)))

    def columns(self, relation: Relation) -> list[ColumnHandle]:
        """The target columns that a query needs."""
        wanted = self.schema.names if relation.columns is None else relation.columns
        return [column for column in self.schema.columns if column.name in wanted]


def delete(
    catalog: AttachedCatalog,
    engine: Engine,
    statement: Delete,
    isolation: Isolation = "snapshot",
    trace: Trace | None = None,
) -> Changed:
    """Delete the rows that match a condition.

    Raises `UnsupportedError` if the table does not support deletes, or would ignore them.
    """

    def once(target: Target) -> Changed:
        query = row_query(statement.query, target.catalog, target.name)
        return _change(target, engine, query, DeleteRows())

    return on_newest(catalog, statement.table, isolation, trace, once, "DELETE")


def update(
    catalog: AttachedCatalog,
    engine: Engine,
    statement: Update,
    isolation: Isolation = "snapshot",
    trace: Trace | None = None,
) -> Changed:
    """Change columns of the rows that match a condition.

    Raises `UnsupportedError` if the table would not store the new values unchanged, and
    `InvalidError` for values that do not fit and for rows that would get the key of another row.
    """

    def once(target: Target) -> Changed:
        query = update_query(target.catalog, statement, target)
        return _change(target, engine, query, UpdateRows(query.updated))

    return on_newest(catalog, statement.table, isolation, trace, once, "UPDATE")


def merge(
    catalog: AttachedCatalog,
    engine: Engine,
    statement: Merge,
    isolation: Isolation = "snapshot",
    trace: Trace | None = None,
) -> Changed:
    """Merge the rows of a source into a table.

    Raises `InvalidError` if a target row is matched twice, and as `update` and `evolved`.
    """
    if statement.evolves:
        statement, catalog = evolved(catalog, engine, statement), catalog.anew()

    def once(target: Target) -> Changed:
        query = merge_query(
            statement, target.catalog, target.name, target.fields, target.schema.given
        )
        columns = target.columns(query.target)
        host = engine.merge_host(query, target.means)
        return merge_rows(
            target.connector,
            target.session,
            target.handle,
            query.changes(target.schema.primary_key),
            columns,
            query.matched_by,
            host,
        )

    return on_newest(catalog, statement.table, isolation, trace, once, "MERGE")


def update_query(catalog: AttachedCatalog, statement: Update, target: Target) -> RowQuery:
    """The query of an UPDATE. Raises `NotFoundError` for unknown columns, and as `bind` does."""
    names = target.schema.names
    given = {column_of(n, names, target.name): v for n, v in statement.assignments.items()}
    values = [(f, given[f.name]) for f in target.fields if f.name in given]
    return row_query(statement.query, catalog, target.name, values)


def target_now(catalog: AttachedCatalog, name: str, session: ConnectorSession) -> Target:
    """The current state of a table. Raises `NotFoundError` if it does not exist."""
    return _finder(catalog, name, session)[0]()


def _change(target: Target, engine: Engine, query: RowQuery, change: RowChange) -> Changed:
    return change_rows(
        target.connector,
        target.session,
        target.handle,
        change,
        target.columns(query.target),
        query.target.terms,
        engine.row_host(query, target.means),
        is_all_terms=query.is_all_terms,
    )


def on_newest(
    catalog: AttachedCatalog,
    name: str,
    isolation: Isolation,
    trace: Trace | None,
    once: Callable[[Target], Changed],
    operation: Literal["DELETE", "UPDATE", "MERGE"] | None = None,
) -> Changed:
    """Run a statement on the latest rows, and retry it after each conflict."""
    session = ConnectorSession(isolation=_isolation(catalog, name, isolation), operation=operation)
    tries: int | None = None
    while True:
        try:
            find, limit = _finder(catalog, name, session)
            tries = limit if tries is None else tries
            target = find()
            if trace is not None:
                target = replace(target, connector=traced(target.connector, trace))
            return once(target)
        except ConflictError as conflict:  # noqa: PERF203  # a conflict is what the loop is for
            if not tries:
                raise ConflictError(
                    f"{conflict}; the statement changed nothing: run it again"
                ) from (conflict)
            tries -= 1
            catalog = catalog.anew()
        finally:
            for connector in catalog.attached.values():
                connector.metadata.end_statement(session)


def _isolation(catalog: AttachedCatalog, name: str, asked: Isolation) -> Isolation:
    """The stricter of the requested isolation and that of the table's attached connector."""
    found = catalog.find_attached(name)
    own: Isolation = "snapshot" if found is None else catalog.attached[found[0]].isolation
    return asked if own == "snapshot" else own


def _finder(
    catalog: AttachedCatalog, name: str, session: ConnectorSession
) -> tuple[Callable[[], Target], int]:
    """A function that returns the table's current state, and the number of allowed conflicts."""

    reading = replace(catalog, statement=session).pinned()

    def find_attached() -> Target:
        found = target_of(catalog, name, session)
        assert found is not None
        return Target(name, reading, found[0], session, found[1])

    def find_stored() -> Target:
        handle = connector.metadata.get_table_handle(session, table.name)
        fields = tuple(reading.table(table.name).schema.fields)
        return Target(table.name, reading, connector, session, handle, fields, means)

    if target_of(catalog, name, session) is not None:
        return find_attached, _ATTACHED_TRIES
    table = table_of(reading, name)
    options = TableOptions.parse(table.schema.options)
    means = Means(options.read_memory_bytes, options.driver_work_bytes_max)
    kind = kind_of(table.schema)
    connector_of = keyed_connector if kind.is_changed_by_key else appended_connector
    connector = connector_of(reading)
    return find_stored, options.commit_retries_max


_ATTACHED_TRIES = 10


def _field(column: ColumnHandle) -> Field:
    return Field(-1, column.name, type_from_arrow(column.type).with_nullable(column.nullable))


# -- EXPLAIN of DELETE, UPDATE and MERGE -----------------------------------------------------------


def explain_change(
    catalog: AttachedCatalog, engine: Engine, statement: Delete | Update | Merge
) -> Result:
    """The plan of a statement, without reading or changing rows. Raises as the statement."""
    target = target_now(catalog, statement.table, ConnectorSession())
    if isinstance(statement, Merge) and statement.evolves:
        lines = _evolving_lines(evolution_of(catalog, engine, statement), target, engine)
    elif isinstance(statement, Merge):
        lines = _merge_lines(statement, target, engine)
    elif isinstance(statement, Update):
        query = update_query(target.catalog, statement, target)
        lines = _row_lines(query, target, UpdateRows(query.updated), engine)
    else:
        query = row_query(statement.query, target.catalog, target.name)
        lines = _row_lines(query, target, DeleteRows(), engine)
    return plan_rows(lines)


def analyze_change(
    catalog: AttachedCatalog, engine: Engine, statement: Delete | Update | Merge
) -> Result:
    """Run a statement, and return the connector calls. Raises as the statement."""
    trace = Trace()
    if isinstance(statement, Delete):
        changed = delete(catalog, engine, statement, trace=trace)
    elif isinstance(statement, Update):
        changed = update(catalog, engine, statement, trace=trace)
    else:
        changed = merge(catalog, engine, statement, trace=trace)
    return plan_rows([*trace.lines(), f"changed: {counted(changed.rows, 'row')}"])


def _row_lines(query: RowQuery, target: Target, change: RowChange, engine: Engine) -> Iterator[str]:
    metadata, terms = target.connector.metadata, query.target.terms
    fields = query.target.fields
    metadata.check_changes(target.session, target.handle, change.changes)
    row_id = change.calls(metadata).row_id(target.session, target.handle)
    narrowed, left = metadata.apply_filter(target.session, target.handle, terms)
    yield from _head(change.what, target, row_id)
    if isinstance(change, UpdateRows):
        yield f"sets: {', '.join(change.updated_columns)}"
    yield (
        f"applied by the connector: {_listed([text_of(t, fields) for t in terms if t not in left])}"
    )
    yield f"not applied by it: {_listed([text_of(t, fields) for t in left])}"
    yield f"further conditions: {'none' if query.is_all_terms else 'some, in the engine only'}"
    if isinstance(change, DeleteRows):
        can = query.is_all_terms and not left
        can = can and metadata.apply_delete(target.session, narrowed) is not None
        yield f"without reading rows: {'yes' if can else 'no'}"
    splits = target.connector.splits.get_splits(target.session, narrowed)
    yield f"splits: {len(splits)}"
    stored, is_exact = target.connector.splits.stored_bytes(splits), query.is_all_terms and not left
    yield from engine.row_host(query, target.means).explained(stored, is_exact=is_exact)
    yield f"columns read: {_listed([c.name for c in target.columns(query.target)])}"
    yield from _others(query.bound.relations)


def _merge_lines(statement: Merge, target: Target, engine: Engine) -> Iterator[str]:
    if target.connector.merge_sinks is None:
        raise UnsupportedError(
            f"table {target.name}: connector {target.connector.name} does not support MERGE"
        )
    query = merge_query(statement, target.catalog, target.name, target.fields, target.schema.given)
    metadata, session = target.connector.metadata, target.session
    changes = query.changes(target.schema.primary_key)
    metadata.check_changes(session, target.handle, changes)
    row_id = metadata.get_merge_row_id_column_handle(session, target.handle)
    yield from _head("MERGE", target, row_id)
    paradigm = metadata.get_row_change_paradigm(session, target.handle)
    yield f"updates: {paradigm.value}"
    for number, (when, branch) in enumerate(zip(statement.whens, query.branches, strict=True)):
        condition = "" if when.condition is None else f" AND {_text(when.condition)}"
        columns = f" {', '.join(f.name for f in branch.fields)}" if branch.fields else ""
        yield f"{number}: WHEN {when.kind}{condition} THEN {branch.action}{columns}"
    splits = target.connector.splits.get_splits(session, target.handle)
    yield f"splits: {len(splits)}"
    stored = target.connector.splits.stored_bytes(splits)
    yield from engine.merge_host(query, target.means).explained(stored)
    read = {*target.columns(query.target), *query.kept(target.schema.columns)}
    yield f"columns read: {_listed([c.name for c in target.schema.columns if c in read])}"
    yield from _others(query.bound.relations)


def _evolving_lines(evolution: Evolution, target: Target, engine: Engine) -> Iterator[str]:
    new = replace(target, fields=tuple(evolution.schema.fields))
    first, *rest = _merge_lines(evolution.statement, new, engine)
    yield first
    for change in evolution.changes:
        yield f"changes the table first: {_changed(change)}"
    yield from rest


def _changed(change: SchemaChange) -> str:
    if isinstance(change, AddColumn):
        return f"adds column {'.'.join(change.path)} {change.type.sql()}"
    if isinstance(change, ChangeColumnType):
        return f"column {'.'.join(change.path)} becomes {change.type.sql()}"
    return str(change)


def _head(what: str, target: Target, row_id: ColumnHandle) -> Iterator[str]:
    yield f"{what} in table {target.name} of connector {target.connector.name}"
    yield f"row id: {row_id.type}"


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts) or "none"


def _text(tree: exp.Expr) -> str:
    return tree.sql(dialect=Keytide, comments=False)


def _others(relations: Sequence[Relation]) -> Iterator[str]:
    """The tables that are read besides the target."""
    for relation in relations:
        first, *rest = relation.explained()
        yield f"reads: {first}"
        yield from (f"  {line}" for line in rest)
