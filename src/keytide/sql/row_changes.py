"""DELETE, UPDATE and MERGE: from a statement to row changes through the table's connector.

A statement that meets a conflict is retried on the latest rows, as often as the table's
'commit.max-retries' allows, or ten times for a table of an attached connector. So two concurrent
statements never undo each other. A trace receives every call to the connector.

MERGE WITH SCHEMA EVOLUTION first adds columns to its table. EXPLAIN shows the plan of a change or,
with ANALYZE, what was done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Literal

import pyarrow as pa
from sqlglot import exp

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import ROW_KIND
from keytide.base.text import counted
from keytide.catalogs.local_writes import extended_table
from keytide.definition.schema_evolution import (
    AddColumn,
    ChangeColumnType,
    SchemaChange,
    evolve,
    growth,
)
from keytide.dml.attachments import AttachedCatalog, table_of
from keytide.dml.engine import Changed, DeleteRows, RowChange, UpdateRows, change_rows, merge_rows
from keytide.dml.row_statements import Target, run_on_latest, target_finder
from keytide.dml.spi import ConnectorSession, Isolation
from keytide.dml.trace import Trace
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.predicate.condition import text_of
from keytide.predicate.predicate import column_of
from keytide.show.explanations import Plan
from keytide.snapshot.stored_table import StoredTable
from keytide.sql.change_queries import RowQuery, merge_query, row_query
from keytide.sql.cursor import Keytide
from keytide.sql.query_engine import Engine
from keytide.sql.relation import Relation
from keytide.sql.relations import bind
from keytide.sql.result import PlanResult
from keytide.sql.statements import Delete, Merge, Query, Update, When
from keytide.types import arrow_schema
from keytide.write.refusals import writable_view

# -- MERGE WITH SCHEMA EVOLUTION -------------------------------------------------------------------


@dataclass(frozen=True)
class Evolution:
    """A MERGE of which each `*` is written as the columns of the source, and what it needs.

    `columns` are the columns of the source that the clauses set, as the table spells them.
    """

    table: StoredTable
    statement: Merge
    columns: pa.Schema

    @property
    def changes(self) -> list[SchemaChange]:
        """What the definition of the table lacks."""
        return growth(self.table.schema, self.columns, self.table.name)

    @property
    def schema(self) -> TableSchema:
        """The definition with these changes, which are not stored."""
        changes = self.changes
        return evolve(self.table.schema, changes) if changes else self.table.schema


def evolution_of(catalog: AttachedCatalog, engine: Engine, statement: Merge) -> Evolution:
    """What a MERGE adds to its table. Changes nothing.

    Raises `UnsupportedError` for a table of an attached connector, `InvalidError` for a source
    whose column names are ambiguous, and as `bind` and the engine for what they refuse.
    """
    if catalog.find_attached(statement.table) is not None:
        raise UnsupportedError(
            f"table {statement.table}: WITH SCHEMA EVOLUTION is not supported for tables of a "
            "connector; add the columns there, and remove these words"
        )
    catalog = catalog.pinned()
    table = table_of(catalog, statement.table)
    writable_view(table.pinned())
    found = _source_columns(catalog, engine, statement)

    # The name in the table for each column of the source.
    known = table.schema.names
    lower = {name.lower() for name in known}
    spelled = {
        name: column_of(name, known, table.name) if name.lower() in lower else name
        for name in found.names
    }

    # The columns of the source that SET * and INSERT * mean. The table computes some itself.
    computed = TableOptions.parse(table.schema.options).generation_texts
    starred = [name for name in found.names if spelled[name] not in computed]
    source = statement.pairs.tree.args["joins"][0].this.alias_or_name or "source"
    own = {spelled[name]: exp.column(name, table=source, quoted=True) for name in starred}
    whens = tuple(
        replace(when, values=own) if when.values is None and when.action != "DELETE" else when
        for when in statement.whens
    )
    set_ = {name.lower() for when in whens for name in _evolving_columns(when, table, source)}
    columns = pa.schema([f.with_name(spelled[f.name]) for f in found if f.name.lower() in set_])
    only_there = {name.lower() for name in found.names} - set(map(str.lower, table.schema.names))
    qualified = _qualified(replace(statement, whens=whens), only_there, source)
    evolution = Evolution(table, qualified, columns)
    if evolution.changes:
        evolve(table.schema, evolution.changes)  # its errors, before anything is stored
        _check_by_engine(catalog, engine, evolution.statement)
    return evolution


def _source_columns(catalog: AttachedCatalog, engine: Engine, statement: Merge) -> pa.Schema:
    source = statement.pairs.tree.args["joins"][0].this.copy()
    if isinstance(source, exp.Subquery) and not source.alias:
        source.set("alias", exp.TableAlias(this=exp.to_identifier("source")))
    name = source.alias_or_name
    tree = exp.select("*").from_(source)
    if isinstance(source, exp.Subquery) and not source.args["alias"].columns:
        tree = source.this  # an engine gives the second of two equal names another one
    bound = bind(replace(statement.pairs, tree=tree.limit(0)), catalog)
    relation = None
    if isinstance(source, exp.Table) and not bound.tree.args["from_"].this.args.get("pivots"):
        # A table that is the whole source: its columns have the types that the lake knows.
        views = {relation.view: relation for relation in bound.relations}
        relation = views.get(bound.tree.args["from_"].this.name)
    found = engine.schema(engine.rows(bound)) if relation is None else arrow_schema(relation.fields)
    lower = [column.lower() for column in found.names]
    twice = next((column for column in found.names if lower.count(column.lower()) > 1), None)
    if twice is not None:
        raise InvalidError(
            f"table {statement.table}: the source {name} has two columns {twice!r} (names are "
            "case-insensitive), so WITH SCHEMA EVOLUTION cannot choose one; rename one with AS"
        )
    return pa.schema(
        [f for f in found if f.name.lower() != ROW_KIND and not bool(pa.types.is_null(f.type))]
    )


def _evolving_columns(when: When, table: StoredTable, source: str) -> Iterator[str]:
    """The columns that a WHEN clause adds if they are missing, or widens.

    It adds each column that it names. It widens only a column that gets the source's column of the
    same name.
    """
    if not when.columns_are_given:
        return
    known = {name.lower() for name in table.schema.names}
    for name, value in (when.values or {}).items():
        is_same = (
            isinstance(value, exp.Column)
            and value.name.lower() == name.lower()
            and value.table.lower() in ("", source.lower())
        )
        if is_same or name.lower() not in known:
            yield name


def _qualified(statement: Merge, names: Set[str], source: str) -> Merge:
    """The statement with the source before these columns of it, as the table may have them soon."""

    def whole(tree: exp.Expr) -> exp.Expr:
        tree = tree.copy()
        for node in tree.walk(prune=lambda n: isinstance(n, exp.Query)):
            if isinstance(node, exp.Column) and not node.table and node.name.lower() in names:
                node.set("table", exp.to_identifier(source, quoted=True))
        return tree

    pairs = statement.pairs.tree.copy()
    join = pairs.args["joins"][0]
    join.set("on", whole(join.args["on"]))
    whens = tuple(
        replace(
            when,
            condition=None if when.condition is None else whole(when.condition),
            values=when.values and {name: whole(value) for name, value in when.values.items()},
        )
        for when in statement.whens
    )
    return replace(statement, pairs=replace(statement.pairs, tree=pairs), whens=whens)


def _check_by_engine(catalog: AttachedCatalog, engine: Engine, statement: Merge) -> None:
    """Let the engine read a MERGE, without rows, as the table still is."""
    tree: exp.Select = statement.pairs.tree.copy()  # type: ignore[assignment]  # made so
    conditions = [when.condition for when in statement.whens if when.condition is not None]
    values = [value for when in statement.whens for value in (when.values or {}).values()]
    tree.set("expressions", [
        exp.alias_(each.copy(), f"c{place}", quoted=True)
        for place, each in enumerate([*conditions, *values, exp.null()])
    ])  # fmt: skip
    query = Query(
        tree.limit(0), statement.pairs.text, statement.pairs.hints, statement.pairs.caller_rows
    )
    engine.schema(engine.rows(bind(query, catalog)))


# -- DELETE, UPDATE and MERGE ----------------------------------------------------------------------


def change(
    catalog: AttachedCatalog,
    engine: Engine,
    statement: Delete | Update,
    trace: Trace | None = None,
) -> Changed:
    """Delete the rows that match a condition, or change columns of them.

    Raises `UnsupportedError` if the table does not support deletes, would ignore them, or would not
    store the new values unchanged, and `InvalidError` for values that do not fit and for rows that
    would get the key of another row.
    """
    once = partial(change_once, engine=engine, statement=statement)
    operation: Literal["DELETE", "UPDATE"] = "DELETE" if isinstance(statement, Delete) else "UPDATE"
    return run_on_latest(catalog, statement.table, "snapshot", trace, once, operation)


def change_once(target: Target, engine: Engine, statement: Delete | Update) -> Changed:
    """The same for the latest state of a table, without a retry. Raises as `change`."""
    query, row_change = _query_of(target, statement)
    return change_rows(
        target.connector,
        target.session,
        target.handle,
        row_change,
        target.columns(query.target.columns),
        query.target.terms,
        engine.row_host(query, target.limits),
        is_all_terms=query.is_all_terms,
    )


def _query_of(target: Target, statement: Delete | Update) -> tuple[RowQuery, RowChange]:
    """The query of a statement. Raises `NotFoundError` for unknown columns, and as `bind` does."""
    if isinstance(statement, Delete):
        return row_query(statement.query, target.catalog, target.name), DeleteRows()
    names = target.schema.names
    given = {column_of(n, names, target.name): v for n, v in statement.assignments.items()}
    values = [(f, given[f.name]) for f in target.fields if f.name in given]
    query = row_query(statement.query, target.catalog, target.name, values)
    return query, UpdateRows(query.updated)


def merge(
    catalog: AttachedCatalog,
    engine: Engine,
    statement: Merge,
    isolation: Isolation = "snapshot",
    trace: Trace | None = None,
) -> Changed:
    """Merge the rows of a source into a table.

    Raises `InvalidError` if a target row is matched twice, and as `change`, `evolution_of` and
    `extended_table`.
    """
    if statement.evolves:
        # The engine has read the statement before: one that it refuses changes nothing.
        evolution = evolution_of(catalog, engine, statement)
        table = evolution.table
        extended_table(table.pinned(), lambda schema: growth(schema, evolution.columns, table.name))
        statement, catalog = evolution.statement, catalog.anew()

    def once(target: Target) -> Changed:
        query = merge_query(
            statement, target.catalog, target.name, target.fields, target.schema.given
        )
        columns = target.columns(query.target.columns)
        host = engine.merge_host(query, target.limits)
        return merge_rows(
            target.connector,
            target.session,
            target.handle,
            query.changes(target.schema.primary_key),
            columns,
            query.matched_by,
            host,
        )

    return run_on_latest(catalog, statement.table, isolation, trace, once, "MERGE")


# -- EXPLAIN of DELETE, UPDATE and MERGE -----------------------------------------------------------


def explain_change(
    catalog: AttachedCatalog, engine: Engine, statement: Delete | Update | Merge
) -> PlanResult:
    """The plan of a statement, without reading or changing rows. Raises as the statement."""
    target = target_finder(catalog, statement.table, ConnectorSession())[0]()
    if isinstance(statement, Merge) and statement.evolves:
        evolution = evolution_of(catalog, engine, statement)
        new = replace(target, fields=tuple(evolution.schema.fields))
        title, *steps = _merge_lines(evolution.statement, new, engine)
        changes = []
        for change in evolution.changes:
            what = str(change)
            if isinstance(change, AddColumn):
                what = f"adds column {'.'.join(change.path)} {change.type.sql()}"
            elif isinstance(change, ChangeColumnType):
                what = f"column {'.'.join(change.path)} becomes {change.type.sql()}"
            changes.append(f"changes the table first: {what}")
        steps = [*changes, *steps]
    elif isinstance(statement, Merge):
        title, *steps = _merge_lines(statement, target, engine)
    else:
        title, *steps = _row_lines(target, *_query_of(target, statement), engine)
    return PlanResult.of(Plan(title, children=tuple(map(Plan, steps))))


def analyze_change(
    catalog: AttachedCatalog, engine: Engine, statement: Delete | Update | Merge
) -> PlanResult:
    """Run a statement, and return the connector calls. Raises as the statement."""
    trace = Trace()
    if isinstance(statement, Merge):
        changed = merge(catalog, engine, statement, trace=trace)
    else:
        changed = change(catalog, engine, statement, trace)
    first, *steps = (*trace.steps(), Plan(f"changed: {counted(changed.rows, 'row')}"))
    return PlanResult.of(Plan(first.title, children=tuple(steps)))


def _row_lines(target: Target, query: RowQuery, change: RowChange, engine: Engine) -> Iterator[str]:
    metadata, terms = target.connector.metadata, query.target.terms
    fields = query.target.fields
    metadata.check_changes(target.session, target.handle, change.changes)
    row_id = change.calls(metadata).row_id(target.session, target.handle)
    narrowed, left = metadata.apply_filter(target.session, target.handle, terms)
    yield f"{change.what} in table {target.name} of connector {target.connector.name}"
    yield f"row id: {row_id.type}"
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
    yield from engine.row_host(query, target.limits).plan_lines(stored, is_exact=is_exact)
    yield f"columns read: {_listed([c.name for c in target.columns(query.target.columns)])}"
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
    yield f"MERGE in table {target.name} of connector {target.connector.name}"
    yield f"row id: {row_id.type}"
    paradigm = metadata.get_row_change_paradigm(session, target.handle)
    yield f"updates: {paradigm.value}"
    for number, (when, branch) in enumerate(zip(statement.whens, query.branches, strict=True)):
        condition = ""
        if when.condition is not None:
            condition = f" AND {when.condition.sql(dialect=Keytide, comments=False)}"
        columns = f" {', '.join(f.name for f in branch.fields)}" if branch.fields else ""
        yield f"{number}: WHEN {when.kind}{condition} THEN {branch.action}{columns}"
    splits = target.connector.splits.get_splits(session, target.handle)
    yield f"splits: {len(splits)}"
    stored = target.connector.splits.stored_bytes(splits)
    yield from engine.merge_host(query, target.limits).plan_lines(stored)
    read = {*target.columns(query.target.columns), *query.unchanged_columns(target.schema.columns)}
    yield f"columns read: {_listed([c.name for c in target.schema.columns if c in read])}"
    yield from _others(query.bound.relations)


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts) or "none"


def _others(relations: Sequence[Relation]) -> Iterator[str]:
    """The tables that are read besides the target."""
    for relation in relations:
        first, *rest = relation.plan_lines()
        yield f"reads: {first}"
        yield from (f"  {line}" for line in rest)
