"""The FROM clause of a query: its tables and views, UNNEST, and column names with a database.

UNNEST expands an array or a map into rows, and its ROW elements into columns. As in Flink,
`UNNEST(x) AS u (a, b)` has one column for each field of an array of ROWs, one for any other array,
and two for a map. WITH ORDINALITY adds one more, which counts from 1. Without names, the columns
are named after the fields, or `key` and `value`, `ordinality`, or after the alias. The type of `x`
follows from the columns of the tables. So each UNNEST is resolved once, and then written in the
syntax of each engine.

Column names can include the database of their table: `shop.orders.id`.

Each mention of a view is replaced by the query of the view. The SQL of views is appended to the
text of the query, so that positions in all trees, and the lines of errors, refer to one text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from keytide.base.dataclass import dataclass, replace
from keytide.base.text import counted
from keytide.catalogs.warehouse import StoredView
from keytide.dml.attachments import AttachedCatalog, entry_of, stored_table_name
from keytide.errors import InvalidError, KeytideError, NotFoundError, UnsupportedError
from keytide.format.paths import BRANCH_MARK, split_branch
from keytide.sql.cursor import Keytide, error_at, typed
from keytide.sql.engine_text import is_file
from keytide.sql.grammar import parse_query
from keytide.sql.statements import CALLER_ROWS, Query
from keytide.types import Field

# -- tables, and the names of WITH -----------------------------------------------------------------


def prepare(tree: exp.Query) -> None:
    """Normalize the names of results and of WITH for the following steps."""
    # Name results after their expressions, so that engines do not invent different names.
    select = tree.find(exp.Select)
    for result in list(select.expressions) if select is not None and tree is select else ():
        is_named = isinstance(result, exp.Subquery) and result.alias
        if not is_named and not isinstance(result, _NAMED):
            result.replace(exp.alias_(result.copy(), result.sql(dialect=Keytide), quoted=True))

    # Write names of WITH as in their definition: `FROM T` can also mean `WITH t`.
    for given in tree.find_all(exp.With):
        spelled = {cte.alias.lower(): cte.alias for cte in given.expressions}
        for node in given.parent.find_all(exp.Table) if given.parent is not None else ():
            name = node.this
            if not node.db and isinstance(name, exp.Identifier):
                name.set("this", spelled.get(name.name.lower(), name.name))


def table_nodes(tree: exp.Expr, text: str) -> tuple[list[exp.Table], list[exp.Table]]:
    """The nodes for tables, and for names of WITH. Raises `InvalidError` for an invalid query."""
    names: list[exp.Table] = []
    local: list[exp.Table] = []
    try:
        scopes = traverse_scope(tree)
    except SqlglotError as error:  # what parses is not yet a query: `(SELECT 1) AS x UNION ...`
        message = f"this is not a valid query ({error})"
        raise error_at(text, 0, message) from error
    # A table that is joined to VALUES occurs in the scopes of both.
    mentions = {id(source): (scope, source) for scope in scopes for _, source in scope.references}
    for scope, source in mentions.values():
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            named = scope.sources.get(source.alias_or_name)
            is_local = not source.db and isinstance(named, Scope)
            (local if is_local else names).append(source)
    return names, local


def name_of(node: exp.Table) -> str:
    """The name of a table as a query writes it."""
    return ".".join(part.name for part in node.parts)


def lake_name(node: exp.Table, catalog: AttachedCatalog) -> tuple[str, str | None]:
    """The table of a node, and its system table if it names one."""
    # Split `db.t$files` into `db.t` and `files`. A branch stays: `db.t$branch_b`, `files`.
    name = stored_table_name(catalog, name_of(node))
    table, branch = split_branch(name)
    table, _, system = table.partition("$")
    if branch is not None:
        branch, _, system = branch.partition("$")
        table = f"{table}{BRANCH_MARK}{branch}"
    return table, system or None


_NAMED = (exp.Alias, exp.Aliases, exp.Column, exp.Dot, exp.Star)


# -- UNNEST ----------------------------------------------------------------------------------------


def resolve_unnests(
    tree: exp.Expr, fields: Mapping[str, Sequence[Field]], text: str = ""
) -> exp.Expr:
    """The query with each UNNEST resolved, which the other functions require.

    `fields` are the columns of the tables by name. Raises `InvalidError`, pointing into `text`, if
    the column names do not fit.
    """
    found = list(_unnests(tree))
    if not found:
        return tree
    known = typed(tree, fields)
    types = [] if known is None else [node.expressions[0].type for node in _unnests(known)]
    if len(types) != len(found):
        types = [None] * len(found)
    for node, type_ in zip(found, types, strict=True):
        spread = _Expansion.of(node, type_)
        expected = len(spread.fields) or (1 if spread.shape is _Shape.VALUES else 0)
        given = len(spread.columns) - spread.has_ordinality
        if expected and given != expected:
            place = min((n.meta["start"] for n in node.walk() if "start" in n.meta), default=0)
            names = f" ({', '.join(spread.fields)})" if spread.fields else ""
            columns, found_names = counted(expected, "column"), counted(given, "name")
            raise error_at(text, place, f"UNNEST returns {columns}{names}, found {found_names}")
        node.meta[_SPREAD] = spread
    return tree


def duckdb_unnest(node: exp.Expr) -> exp.Expr:
    """A resolved UNNEST in DuckDB's syntax. Other nodes are unchanged."""
    spread = node.meta.get(_SPREAD)
    if spread is None:
        return node
    value = node.expressions[0]
    if spread.shape is _Shape.ENTRIES:
        value = exp.Anonymous(this="map_entries", expressions=[value])
    depth = (
        []
        if spread.shape is _Shape.VALUES
        else [exp.PropertyEQ(this=exp.to_identifier("max_depth"), expression=exp.Literal.number(2))]
    )
    query = exp.select(exp.Explode(this=value.copy(), expressions=depth))
    if spread.has_ordinality:
        query = query.select(exp.Anonymous(this="generate_subscripts", expressions=[
            value.copy(), exp.Literal.number(1)]))  # fmt: skip
    return _relation(node, exp.Subquery(this=query), spread)


def spark_unnest(node: exp.Expr) -> exp.Expr:
    """A resolved UNNEST in Spark's syntax. Other nodes are unchanged.

    Raises `InvalidError` for the ordinality of ROWs whose fields are unknown.
    """
    if isinstance(node, exp.Join) and _SPREAD in node.this.meta and node.side.upper() == "LEFT":
        condition = node.args.get("on")
        if isinstance(condition, exp.Boolean) and condition.this:
            # Spark cannot join a map laterally, but has generators that keep empty maps.
            spread = node.this.meta[_SPREAD]
            generator = _generator(node.this.expressions[0], spread, "_OUTER")
            return exp.Join(this=_relation(node.this, generator, spread), kind="CROSS")
    spread = node.meta.get(_SPREAD)
    if spread is None:
        return node
    return _relation(node, _generator(node.expressions[0], spread), spread)


class _Shape(Enum):
    """The type of the value that UNNEST expands."""

    VALUES = "values"
    ROWS = "rows"
    ENTRIES = "entries"


@dataclass(frozen=True)
class _Expansion:
    """What an UNNEST expands. `fields` are those of the ROWs, if known."""

    shape: _Shape
    fields: tuple[str, ...]
    columns: tuple[exp.Identifier, ...]
    has_ordinality: bool

    @classmethod
    def of(cls, node: exp.Unnest, type_: exp.DataType | None) -> _Expansion:
        value, alias = node.expressions[0], node.args.get("alias")
        given = [] if alias is None else list(alias.columns)
        is_array = type_ is not None and type_.is_type(exp.DType.ARRAY) and type_.expressions
        element = type_.expressions[0] if type_ is not None and is_array else None
        fields: tuple[str, ...] = ()
        if type_ is not None and type_.is_type(exp.DType.MAP):
            shape, fields = _Shape.ENTRIES, _ENTRY
        elif element is not None and element.is_type(exp.DType.STRUCT):
            shape, fields = _Shape.ROWS, tuple(member.name for member in element.expressions)
        elif element is not None and not element.is_type(exp.DType.UNKNOWN):
            shape = _Shape.VALUES
        elif isinstance(value, exp.Bracket) and value.this.name.upper() == "MAP":
            shape, fields = _Shape.ENTRIES, _ENTRY
        else:
            shape = _Shape.VALUES if len(given) < 2 else _Shape.ROWS
        offset = node.args.get("offset")
        names = given or [exp.to_identifier(name, quoted=True) for name in fields]
        if not names:
            names = [exp.to_identifier(node.alias or "value", quoted=True)]
        if offset:
            known = isinstance(offset, exp.Identifier) and given
            names.append(offset if known else exp.to_identifier("ordinality"))
        return cls(shape, fields, tuple(name.copy() for name in names), bool(offset))


_SPREAD = "spread"
_ENTRY = ("key", "value")


def _unnests(tree: exp.Expr) -> Iterator[exp.Unnest]:
    """The UNNESTs in FROM. In SELECT, UNNEST is a function of the engines."""
    for node in tree.find_all(exp.Unnest):
        if isinstance(node.parent, exp.From | exp.Join) and len(node.expressions) == 1:
            yield node


def _relation(node: exp.Expr, source: exp.Expr, spread: _Expansion) -> exp.Expr:
    """A lateral relation that replaces an UNNEST. The first one of a FROM is not lateral."""
    name = exp.to_identifier(node.alias or "unnest", quoted=True)
    alias = exp.TableAlias(this=name, columns=[column.copy() for column in spread.columns])
    if isinstance(node.parent, exp.Join):
        return exp.Lateral(this=source, alias=alias)
    if isinstance(source, exp.Subquery):
        source.set("alias", alias)
        return source
    return exp.Table(this=source, alias=alias)


def _generator(value: exp.Expr, spread: _Expansion, suffix: str = "") -> exp.Expr:
    """The Spark function that generates the rows."""
    if not spread.has_ordinality:
        function = "INLINE" if spread.shape is _Shape.ROWS else "EXPLODE"
        return exp.Anonymous(this=f"{function}{suffix}", expressions=[value.copy()])

    # An array of ROWs that have their number as the last field.
    item, place = exp.to_identifier("item"), exp.to_identifier("place")
    if spread.shape is _Shape.ROWS and not spread.fields:
        raise InvalidError(
            f"UNNEST({value.sql(dialect=Keytide)}) WITH ORDINALITY: the fields of the rows are not "
            f"known; CAST the value to its type"
        )
    if spread.shape is _Shape.ENTRIES:
        value = exp.Anonymous(this="MAP_ENTRIES", expressions=[value])
    names = [exp.to_identifier(name, quoted=True) for name in spread.fields]
    members: list[exp.Expr] = [exp.Dot(this=item, expression=name) for name in names] or [item]
    number = exp.Add(this=place, expression=exp.Literal.number(1))
    row = exp.Anonymous(this="STRUCT", expressions=[m.copy() for m in (*members, number)])
    each = exp.Lambda(this=row, expressions=[item.copy(), place.copy()])
    numbered = exp.Anonymous(this="TRANSFORM", expressions=[value.copy(), each])
    return exp.Anonymous(this=f"INLINE{suffix}", expressions=[numbered])


# -- column names with a database ------------------------------------------------------------------


def drop_databases(tree: exp.Expr, database: str) -> None:
    """Remove the database from such column names, as engines require.

    This is done only if the table without the database name, in `database`, is the same one. The
    engine refuses everything else.
    """
    if not any(column.args.get("db") for column in tree.find_all(exp.Column)):
        return
    for scope in traverse_scope(tree):
        for column in scope.find_all(exp.Column):
            if column.args.get("db") and _names(column, scope, database):
                column.set("db", None)
                column.set("catalog", None)


def _names(column: exp.Column, scope: Scope | None, database: str) -> bool:
    """Whether the nearest source with the column's table name is the fully qualified table."""
    while scope is not None:
        found = [source for name, source in scope.references if _same(name, column.table)]
        if found:
            (source, *others) = found
            if others or not isinstance(source, exp.Table):
                return False

            if source.alias:
                return False
            wanted = [part.name for part in column.parts[:-1]]
            have = [part.name for part in source.parts]
            given = [database, *have] if len(have) == 1 else have
            return len(wanted) == len(given) and all(map(_same, wanted, given))
        scope = scope.parent
    return False


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


# -- views -----------------------------------------------------------------------------------------


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

        # The query of the view, with a database added to each of its table names.
        of_view = parsed.tree
        within = of_view if isinstance(of_view, exp.Query) else exp.select("*").from_(of_view)
        prepare(within)
        drop_databases(within, view.database)
        for table in table_nodes(within, parsed.text)[0]:
            if not table.db and not is_file(table):
                name = exp.to_identifier(table.name, quoted=True)
                table.set("db", exp.to_identifier(view.database, quoted=True))
                if not table.alias:
                    table.set("alias", exp.TableAlias(this=name))
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
        view = catalog.find_view(whole) if whole.count(".") < 2 else None
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
    raise UnsupportedError(str(error_at(query.text, node.this.meta["start"], message)))


_KEPT = ("joins", "laterals", "pivots", "sample")
