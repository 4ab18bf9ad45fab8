"""EXPLAIN of DELETE, UPDATE and MERGE: the plan or, with ANALYZE, what was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from keytide.base.plural import counted
from keytide.definition.evolution import AddColumn, ChangeColumnType, SchemaChange
from keytide.dml.attached import AttachedCatalog
from keytide.dml.execution import DeleteRows, RowChange, UpdateRows
from keytide.dml.spi import ColumnHandle, ConnectorSession
from keytide.dml.trace import Trace
from keytide.errors import UnsupportedError
from keytide.predicate.text import text_of
from keytide.sql.dialect import Keytide
from keytide.sql.dml import Target, delete, merge, target_now, update, update_query
from keytide.sql.evolving import Evolution, evolution_of
from keytide.sql.merge_plan import merge_query
from keytide.sql.query_engine import Engine
from keytide.sql.relation import Relation
from keytide.sql.result import Result
from keytide.sql.row_query import RowQuery, row_query
from keytide.sql.show import plan_rows
from keytide.sql.statements import Delete, Merge, Update

__all__ = ["analyze_change", "explain_change"]


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
