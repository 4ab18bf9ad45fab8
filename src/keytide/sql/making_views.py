"""Creates and describes views. The query of a view is tested before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from keytide.base.text import counted
from keytide.catalogs.stored_view import StoredView
from keytide.dml.attach import AttachedCatalog
from keytide.errors import AlreadyExistsError, InvalidError
from keytide.sql.grammar import parse_query
from keytide.sql.mentions import prepare
from keytide.sql.query_engine import Engine
from keytide.sql.relations import bind
from keytide.sql.show import described
from keytide.sql.statements import CreateView
from keytide.sql.stored_views import with_views
from keytide.types import quoted, type_from_arrow

__all__ = ["create_view", "described_view"]


def create_view(catalog: AttachedCatalog, engine: Engine, statement: CreateView) -> None:
    """Store a view if its query can run. Raises as `Lake.create_view`, and as `bind`."""
    name = statement.name if "." in statement.name else f"{catalog.database}.{statement.name}"
    view = StoredView(name, statement.text, catalog.database, statement.columns, statement.comment)
    _check_columns(_columns(catalog, engine, statement.text), view)
    tree = statement.query.tree
    own = tree.named_selects if isinstance(tree, exp.Query) else []
    _check_names(view.columns or own, view)
    if statement.replaces:
        _refuse_circle(catalog, view)
    if not catalog.create_view(view, replace=statement.replaces) and not statement.exists_ok:
        raise AlreadyExistsError(
            f"view {name} already exists in {catalog.uri}; use CREATE OR REPLACE VIEW to replace it"
        )


def _columns(catalog: AttachedCatalog, engine: Engine, text: str) -> pa.Schema:
    query = parse_query(f"SELECT * FROM ({text}\n) AS of_view LIMIT 0")
    return engine.schema(engine.rows(bind(query, catalog)))


def _check_columns(found: pa.Schema, view: StoredView) -> None:
    names = view.columns or tuple(found.names)
    if len(names) != len(found.names):
        raise InvalidError(
            f"view {view.name} names {counted(len(names), 'column')}, but its query returns "
            f"{len(found.names)}: {', '.join(found.names)}"
        )


def _check_names(names: Sequence[str], view: StoredView) -> None:
    spelled = [name.lower() for name in names if name != "*"]
    twice = next((name for name in names if spelled.count(name.lower()) > 1), None)
    if twice is not None:
        raise InvalidError(
            f"view {view.name}: two columns are named {twice!r} (names are case-insensitive); "
            "rename one with AS, or list the columns after the name of the view"
        )


def _refuse_circle(catalog: AttachedCatalog, view: StoredView) -> None:
    """Refuse a view that would read itself, which is possible if it replaces another one."""
    known = catalog.find_view(view.name)
    if known is None:
        return
    query = parse_query(view.query)
    tree = query.tree if isinstance(query.tree, exp.Query) else exp.select("*").from_(query.tree)
    prepare(tree)
    with_views(tree, query, catalog.pinned(), (replace(view, name=known.name),))


def described_view(
    catalog: AttachedCatalog, engine: Engine, view: StoredView, *, extended: bool
) -> pa.Table:
    """The columns of a view with their types. `extended` adds its query and its comment."""
    name = ".".join(map(quoted, view.name.split(".", 1)))
    found = _columns(catalog, engine, f"SELECT * FROM {name}")
    rows: list[tuple[str | None, ...]] = [
        (c.name, type_from_arrow(c.type, c.nullable).sql(), "", None) for c in found
    ]
    if extended:
        rows += [("view", view.name, "view", view.comment), ("query", view.query, "view", None)]
        rows.append(("database", view.database, "view", None))
    return described(rows)
