"""MERGE WITH SCHEMA EVOLUTION: the columns that a merge adds to its table."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from keytide.base.row_kind import ROW_KIND
from keytide.catalogs.growing import grown
from keytide.definition.column_rules import generation_texts
from keytide.definition.schema_evolution import SchemaChange, evolve, growth
from keytide.dml.attach import AttachedCatalog
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.snapshot.pinned import StoredTable
from keytide.sql.names import column_of, table_of
from keytide.sql.query_engine import Engine
from keytide.sql.relation import Relation
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.statements import Merge, Query, When
from keytide.types import arrow_schema
from keytide.write.refusals import writable_view

__all__ = ["Evolution", "evolution_of", "evolved"]


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
        return self._needed(self.table.schema)

    @property
    def schema(self) -> TableSchema:
        """The definition with these changes, which are not stored."""
        changes = self.changes
        return evolve(self.table.schema, changes) if changes else self.table.schema

    def check(self) -> None:
        """Raise the errors of `evolve` for a column that cannot be added. Nothing is stored."""
        evolve(self.table.schema, self.changes)

    def carry_out(self) -> None:
        """Store the changes. Raises as `grown`."""
        grown(self.table.pinned(), self._needed)

    def _needed(self, schema: TableSchema) -> list[SchemaChange]:
        return growth(schema, self.columns, self.table.name)


def evolved(catalog: AttachedCatalog, engine: Engine, statement: Merge) -> Merge:
    """The statement for the table once it has the columns that the statement needs.

    A statement that the engine refuses changes nothing. Raises as `evolution_of`, and as `grown`.
    """
    evolution = evolution_of(catalog, engine, statement)
    evolution.carry_out()
    return evolution.statement


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
    spelled = _as_spelled(found, table)
    starred = _starred(found, spelled, table)
    source = statement.pairs.tree.args["joins"][0].this.alias_or_name or "source"
    own = {spelled[name]: exp.column(name, table=source, quoted=True) for name in starred}
    whens = tuple(
        replace(when, values=own) if when.values is None and when.action != "DELETE" else when
        for when in statement.whens
    )
    set_ = {name.lower() for when in whens for name in _evolving(when, table, source)}
    columns = pa.schema([f.with_name(spelled[f.name]) for f in found if f.name.lower() in set_])
    only_there = {name.lower() for name in found.names} - set(map(str.lower, table.schema.names))
    qualified = _qualified(replace(statement, whens=whens), only_there, source)
    evolution = Evolution(table, qualified, columns)
    if evolution.changes:
        evolution.check()
        _try_out(catalog, engine, evolution.statement)
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
    relation = _only_table(bound) if isinstance(source, exp.Table) else None
    found = engine.schema(engine.rows(bound)) if relation is None else arrow_schema(relation.fields)
    lower = [column.lower() for column in found.names]
    twice = next((column for column in found.names if lower.count(column.lower()) > 1), None)
    if twice is not None:
        raise InvalidError(
            f"table {statement.table}: the source {name} has two columns {twice!r} (names are "
            "case-insensitive), so WITH SCHEMA EVOLUTION cannot choose one; rename one with AS"
        )
    return pa.schema([f for f in found if f.name.lower() != ROW_KIND and not _has_no_type(f)])


def _only_table(bound: BoundQuery) -> Relation | None:
    """The table that is the whole source. Its columns have the types that the lake knows."""
    source = bound.tree.args["from_"].this
    views = {relation.view: relation for relation in bound.relations}
    return None if source.args.get("pivots") else views.get(source.name)


def _has_no_type(field: pa.Field) -> bool:
    return bool(pa.types.is_null(field.type))


def _as_spelled(found: pa.Schema, table: StoredTable) -> dict[str, str]:
    """The name in the table for each column of the source."""
    known = table.schema.names
    lower = {name.lower() for name in known}
    return {
        name: column_of(name, known, table.name) if name.lower() in lower else name
        for name in found.names
    }


def _starred(found: pa.Schema, spelled: dict[str, str], table: StoredTable) -> list[str]:
    """The columns of the source that SET * and INSERT * mean. The table computes some itself."""
    computed = generation_texts(TableOptions.parse(table.schema.options))
    return [name for name in found.names if spelled[name] not in computed]


def _evolving(when: When, table: StoredTable, source: str) -> Iterator[str]:
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


def _try_out(catalog: AttachedCatalog, engine: Engine, statement: Merge) -> None:
    """Let the engine read a MERGE, without rows, as the table still is."""
    tree: exp.Select = statement.pairs.tree.copy()  # type: ignore[assignment]  # made so
    conditions = [when.condition for when in statement.whens if when.condition is not None]
    values = [value for when in statement.whens for value in (when.values or {}).values()]
    tree.set("expressions", [
        exp.alias_(each.copy(), f"c{place}", quoted=True)
        for place, each in enumerate([*conditions, *values, exp.null()])
    ])  # fmt: skip
    query = Query(tree.limit(0), statement.pairs.text, statement.pairs.hints, statement.pairs.given)
    engine.schema(engine.rows(bind(query, catalog)))
