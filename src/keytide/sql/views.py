"""Views in queries: each mention is replaced by the query of the view.

The SQL of views is appended to the text of the query, so that positions in all trees, and the
lines of errors, refer to one text.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from keytide.catalogs.warehouse import StoredView
from keytide.dml.attachments import AttachedCatalog, entry_of
from keytide.errors import InvalidError, KeytideError, NotFoundError, UnsupportedError
from keytide.format.paths import split_branch
from keytide.sql.cursor import error_at
from keytide.sql.engine_text import is_file
from keytide.sql.from_clause import (
    drop_databases,
    lake_name,
    name_of,
    prepare,
    start_of,
    table_nodes,
)
from keytide.sql.grammar import parse_query
from keytide.sql.statements import CALLER_ROWS, Query

# -- views in queries: each mention is replaced by the query of the view ---------------------------


def with_views(
    tree: exp.Query, query: Query, catalog: AttachedCatalog, inside: tuple[StoredView, ...] = ()
) -> Query:
    """Insert the queries of views into a tree. Returns the query with their SQL appended.

    A table takes precedence over a view with the same name. `inside` are the views that contain the
    tree. Raises `InvalidError` for views that read themselves, `UnsupportedError` for a version of
    a view, and `NotFoundError`, which names the view, if something that the view reads no longer
    exists.
    """
    for node in table_nodes(tree, query.text)[0]:
        if (view := _view_of(node, catalog, query, inside)) is None:
            continue
        _refuse_travel(node, view, query)
        if view.name in [each.name for each in inside]:
            way = " -> ".join(each.name for each in (*inside, view))
            raise InvalidError(
                f"view {view.name} refers to itself: {way}; replace one of these views with "
                "CREATE OR REPLACE VIEW"
            )
        start = len(query.text) + 1
        parsed = parse_query(f"{query.text}\n{view.query}", start)
        within = _qualified(parsed, view)
        query = replace(query, text=parsed.text, hints={**query.hints, **parsed.hints})
        query = with_views(within, query, catalog, (*inside, view))

        alias = node.args.get("alias") or exp.TableAlias()
        if alias.this is None:
            alias.set("this", exp.to_identifier(node.name, quoted=True))
        if view.columns and not alias.columns:
            named = [exp.to_identifier(column, quoted=True) for column in view.columns]
            alias.set("columns", named)
        around = {key: value for key, value in node.args.items() if key in _KEPT and value}
        node.replace(exp.Subquery(this=within, alias=alias, **around))
    return query


def _view_of(
    node: exp.Table, catalog: AttachedCatalog, query: Query, inside: tuple[StoredView, ...]
) -> StoredView | None:
    name = name_of(node)
    if node.meta.get(CALLER_ROWS) or is_file(node) or catalog.find_attached(name) is not None:
        return None
    whole, _ = lake_name(node, catalog)
    whole, _ = split_branch(whole)
    try:
        entry_of(catalog, whole)
        return None
    except (NotFoundError, UnsupportedError) as error:
        # Case is ignored, because the name was written in SQL.
        view = catalog.find_view(whole) if (whole.count(".") < 2) else None
        if view is None and inside:
            raise type(error)(f"view {inside[-1].name} cannot be read: {error}") from error
        return view
    except KeytideError:
        return None  # reading the table raises the error


def _refuse_travel(node: exp.Table, view: StoredView, query: Query) -> None:
    """Refuse time travel and options that a view does not support."""
    if "$" in name_of(node):
        message = f"{view.name} is a view, which has no branches and no system tables"
    elif node.args.get("version") is not None:
        message = (
            f"{view.name} is a view, which has no versions; select the version of a table in its "
            "query"
        )
    elif query.hints.get(node.this.meta["end"] + 1):
        message = (
            f"{view.name} is a view, which does not support OPTIONS; set them on the tables in "
            "its query"
        )
    else:
        return
    raise UnsupportedError(str(error_at(query.text, start_of(node), message)))


def _qualified(parsed: Query, view: StoredView) -> exp.Query:
    """The query of a view, with a database added to each of its table names."""
    tree = parsed.tree
    within = tree if isinstance(tree, exp.Query) else exp.select("*").from_(tree)
    prepare(within)
    drop_databases(within, view.database)
    for table in table_nodes(within, parsed.text)[0]:
        if not table.db and not is_file(table):
            table.set("db", exp.to_identifier(view.database, quoted=True))
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
    return within


_KEPT = ("joins", "laterals", "pivots", "sample")
