"""The tables of a query: which rows of which snapshot the engine gets.

Each mention of a table becomes a view of its own, which reads only the columns and rows that this
mention needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, TypeAlias

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from keytide.base.dataclass import dataclass, replace
from keytide.definition.checks import refuse_same_names
from keytide.definition.kind import is_external
from keytide.dml.attachments import AttachedCatalog, entry_of, table_of, target_of
from keytide.dml.spi import ConnectorSession
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.format.paths import main_store
from keytide.options import keys, stored_name
from keytide.predicate.predicate import Predicate
from keytide.read.fallback import reads_two_branches
from keytide.snapshot.branch_tables import has_branch, open_branch
from keytide.snapshot.stored_table import StoredTable
from keytide.sources.scan import EXTERNAL_TABLES, ExternalHandle
from keytide.sources.source_state import pin_external
from keytide.sql import from_clause, pushdown
from keytide.sql.cursor import Keytide, error_at, schema_of
from keytide.sql.engine_text import (
    LostClauseError,
    engine_text,
    is_file,
    outside_error,
    refuse_outside_functions,
)
from keytide.sql.procedures import FUNCTIONS_ELSEWHERE
from keytide.sql.relation import (
    AttachedRelation,
    ExternalRelation,
    FallbackRelation,
    Relation,
    StoredRelation,
    SystemRelation,
)
from keytide.sql.statements import CALLER_ROWS, Query
from keytide.types import Field, RowType, quoted

READ_OPTIONS = {
    keys.SCAN_SNAPSHOT_ID: "snapshot_id",
    keys.SCAN_TAG_NAME: "tag",
    keys.SCAN_TIMESTAMP_MILLIS: "as_of",
    keys.SCAN_TIMESTAMP: "as_of",
    keys.SCAN_VERSION: "version",
    keys.SCAN_SKIP_UPSERT: "skip_upsert",
    keys.SCAN_SKIP_UPSERT_DELETE: "skip_upsert_delete",
    keys.INCREMENTAL_BETWEEN: "between",
    keys.INCREMENTAL_BETWEEN_SCAN_MODE: "mode",
}
"""Options allowed in `/*+ OPTIONS(...) */`, and their meaning for a scan or for changes."""

_CHANGES = ("between", "mode")
_ROWS = ("skip_upsert", "skip_upsert_delete")
_LOG = "audit_log"


@dataclass(frozen=True)
class BoundQuery:
    """A query over views, and the relation of each view. `text` is the original SQL text."""

    tree: exp.Expr
    relations: tuple[Relation, ...] = ()
    text: str = ""

    def text_for(self, dialect: str, *rewrites: Callable[[exp.Expr], exp.Expr]) -> str:
        """The text of the query for an engine, after applying the rewrites to each node in order.

        Raises `InvalidError` for a clause that the engine's dialect cannot express.
        """
        try:
            tree = self.tree
            for rewrite in rewrites:
                tree = tree.transform(rewrite)
            return engine_text(tree, dialect)
        except LostClauseError as lost:
            starts = [node.meta["start"] for node in lost.node.walk() if "start" in node.meta]
            raise error_at(self.text, min(starts, default=0), str(lost)) from lost

    def refused(self, message: str) -> InvalidError:
        """An engine error that points at the first name in its message that occurs in the query."""
        if message.startswith("Out of Memory Error"):
            return InvalidError(
                f"{_CANNOT_RUN}: {message}; DELETE, UPDATE and MERGE can use as much memory as "
                f"'{keys.READ_MEMORY}' of the table allows: increase it, or change the rows in "
                "several steps"
            )
        condition = pushdown.refused_condition(self.tree, message, self.text)
        if condition is not None:
            return condition
        words = re.findall(r"[\"`']([^\"`']+)[\"`']", message)
        for node in self.tree.walk():
            start = node.meta.get("start")
            if start is not None and node.name in words:
                return error_at(self.text, start, f"{_CANNOT_RUN}: {message}")
        return InvalidError(f"{_CANNOT_RUN}: {message}")


_CANNOT_RUN = "the query cannot be executed; the engine says"


def bind(query: Query, catalog: AttachedCatalog) -> BoundQuery:
    """Find the tables of a query and what it needs from each, looking up each table once.

    Raises `NotFoundError` for an unknown table, snapshot or tag, and `InvalidError` for an unknown
    read option and for a condition that is not BOOLEAN.
    """
    catalog = catalog.pinned()
    tree = pushdown.balanced_chains(query.tree.copy())
    if not isinstance(tree, exp.Query):
        if not tree.find(exp.Table):
            return BoundQuery(pushdown.marked_conditions(tree, {}, query.text), (), query.text)
        tree = exp.select("*").from_(tree)  # VALUES with queries inside
    from_clause.prepare(tree)
    from_clause.drop_databases(tree, catalog.database)
    query = from_clause.with_views(tree, query, catalog)
    names, local = from_clause.table_nodes(tree, query.text)
    _check_mentions(tree, names, local, query)
    for node in local:
        if node.args.get("version") is not None:
            message = f"{node.name} is a query of this statement, which has no versions"
            raise error_at(query.text, node.this.meta["start"], message)
    if not catalog.allows_external_files:
        refuse_outside_functions(tree, query.text)
    relations: list[Relation] = []
    for node in names:
        if is_file(node) and not _is_in_lake(node, query, catalog):
            continue
        relation = _relation(node, f"keytide_{len(relations)}", query, catalog)
        relations.append(relation)
        try:
            # SQL cannot distinguish some columns of tables of other engines.
            refuse_same_names(relation.fields)
        except InvalidError as error:
            message = f"table {relation.name}: {error}; read the table from Python instead"
            raise error_at(query.text, node.this.meta["start"], message) from error
        if not node.alias:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)))
        for part in ("db", "catalog", "version"):
            node.set(part, None)
        node.set("this", exp.to_identifier(relation.view))
        node.comments = None
    fields = {relation.view: relation.fields for relation in relations}
    from_clause.resolve_unnests(tree, fields, query.text)
    try:
        # Only the columns and terms that the query needs, or all if that is unclear.
        needs = _needs(tree, fields)
    except SqlglotError:
        needs = {}  # the engine reports what is wrong
    narrowed = tuple(r.narrowed(*needs[r.view]) if r.view in needs else r for r in relations)
    return BoundQuery(pushdown.marked_conditions(tree, fields, query.text), narrowed, query.text)


# -- names -----------------------------------------------------------------------------------------


def _check_mentions(
    tree: exp.Expr, names: Sequence[exp.Table], local: Sequence[exp.Table], query: Query
) -> None:
    """Refuse unknown table names before they reach the engine, and options that belong to none."""
    # The engine would look up an unknown name itself: a variable, a file or a table.
    resolved = {id(node) for node in (*names, *local)}
    for node in tree.find_all(exp.Table):
        is_unread = id(node) not in resolved or isinstance(node.parent, exp.Into)
        if is_unread and isinstance(node.this, exp.Identifier):
            message = f"a table cannot be named here: {node.sql()}"
            raise error_at(query.text, node.this.meta.get("start", 0), message)
        instead = FUNCTIONS_ELSEWHERE.get(node.this.name.lower())
        if instead is not None and isinstance(node.this, exp.Anonymous):
            raise UnsupportedError(
                f"{node.this.name}() is not supported for Keytide tables: {instead}"
            )

    message = "OPTIONS must follow the name of a table of the catalog, before its alias"
    taken = {node.this.meta["end"] + 1 for node in names}
    for place in query.hints.keys() - taken:
        raise error_at(query.text, place, message)
    for hint in tree.find_all(exp.Hint):
        # A hint that does not parse is kept as a string.
        words = (h if isinstance(h, str) else h.name for h in hint.expressions)
        if any(word.upper().startswith("OPTIONS") for word in words):
            raise error_at(query.text, max(query.text.find("/*+"), 0), message)


def _relation(node: exp.Table, view: str, query: Query, catalog: AttachedCatalog) -> Relation:
    given = query.caller_rows.get(node.meta.get(CALLER_ROWS, ""))
    if isinstance(given, StoredRelation):
        return replace(given, view=view, table=catalog.pin(given.table))
    if given is not None:
        return replace(given, view=view)

    name, place = from_clause.name_of(node), node.this.meta
    hint = query.hints.get(place["end"] + 1)
    session: ConnectorSession = catalog.statement or ConnectorSession()
    if catalog.find_attached(name) is not None:
        if hint:
            message = f"{name} is attached and does not support OPTIONS"
            raise error_at(query.text, place["start"], message)
        version = _version_number(node.args.get("version"), name)
        try:
            target = target_of(catalog, name, session, version)
        except NotFoundError as error:
            raise NotFoundError(str(error_at(query.text, place["start"], str(error)))) from error
        assert target is not None
        return AttachedRelation(view, *target, session, name.partition(".")[0])

    # A table of the lake, which can be an external one.
    name, system = from_clause.lake_name(node, catalog)
    try:
        entry = entry_of(catalog, name)
    except NotFoundError as error:
        raise NotFoundError(str(error_at(query.text, place["start"], str(error)))) from error
    if not is_external(entry.schema):
        return _stored(node, view, query, catalog)
    if system is not None or hint:
        raise UnsupportedError(
            f"{entry.name} is an external table, which has no system tables and no read OPTIONS; "
            "use VERSION AS OF to select a version, if its format has versions"
        )
    version = _version_number(node.args.get("version"), entry.name)
    handle = ExternalHandle(pin_external(entry, version))
    return ExternalRelation(view, EXTERNAL_TABLES, handle, ConnectorSession(), entry.name)


def _version_number(given: exp.Version | None, table: str) -> str | None:
    """The version of an external table that VERSION AS OF names."""
    if given is None:
        return None
    literal = _literal_of(given, table)
    if given.name.upper() != "VERSION":
        raise UnsupportedError(f"table {table} does not support reads by time; use VERSION AS OF")
    return str(literal.this)


def _stored(
    node: exp.Table, view: str, query: Query, catalog: AttachedCatalog
) -> StoredRelation | FallbackRelation | SystemRelation:
    name, system = from_clause.lake_name(node, catalog)
    place = node.this.meta
    given, version = query.hints.get(place["end"] + 1, {}), node.args.get("version")
    hint = {key: value for key, value in given.items() if _stored_option_name(key) != keys.BRANCH}
    branch = next((value for key, value in given.items() if key not in hint), None)
    try:
        table = catalog.pin(table_of(catalog, name))
        if branch is None and version is not None and (branch := _branch_named(version, table)):
            version = None
        table = table if branch is None else catalog.pin(open_branch(table, branch))
    except NotFoundError as error:
        raise NotFoundError(str(error_at(query.text, place["start"], str(error)))) from error
    changes = [key for key in hint if READ_OPTIONS.get(_stored_option_name(key)) in _CHANGES]
    rows = {k: v for k, v in hint.items() if READ_OPTIONS.get(_stored_option_name(k)) in _ROWS}
    hint = {key: value for key, value in hint.items() if key not in rows}
    ways = [*(key for key in hint if key not in changes), *([] if version is None else ["AS OF"])]
    if rows and (system is not None or changes):
        raise InvalidError(
            f"table {table.name}: {' and '.join(map(repr, rows))} is only for reads of the table "
            "itself, not for system tables and changes; remove it"
        )
    if changes:
        _check_changes(hint, changes, ways, system, table)
    if len(ways) > 1:
        raise InvalidError(
            f"table {table.name}: {' and '.join(ways)} each select a snapshot to read; give only "
            "one of them"
        )
    travel = {} if version is None else _from_version(version, table)
    travel |= _from_hint({**hint, **rows}, table)
    if system is None:
        kind = FallbackRelation if reads_two_branches(table) else StoredRelation
        return kind(view, table, travel)
    return SystemRelation(view, table, system, travel)


def _check_changes(
    hint: Mapping[str, str],
    changes: Sequence[str],
    ways: Sequence[str],
    system: str | None,
    table: StoredTable,
) -> None:
    """Refuse a request for changes that the table cannot return, or not completely."""
    if ways or not any(_stored_option_name(key) == keys.INCREMENTAL_BETWEEN for key in hint):
        raise InvalidError(
            f"table {table.name}: {' and '.join((*changes, *ways))} do not select what to read; "
            f"give '{keys.INCREMENTAL_BETWEEN}' = 'start,end', with or without "
            f"'{keys.INCREMENTAL_BETWEEN_SCAN_MODE}'"
        )
    if system != _LOG:
        raise InvalidError(
            f"table {table.name}: '{keys.INCREMENTAL_BETWEEN}' returns changes, which need a "
            "column for the row kind: read them from "
            f"{quoted(table.name.split('.')[-1] + '$' + _LOG)}"
        )


def _from_hint(options: Mapping[str, str], table: StoredTable) -> dict[str, Any]:
    travel: dict[str, Any] = {}
    for key, value in options.items():
        meaning = READ_OPTIONS.get(_stored_option_name(key))
        if meaning is None:
            raise InvalidError(
                f"table {table.name}: {key!r} is not a read option; read options: "
                f"{', '.join(sorted([*READ_OPTIONS, keys.BRANCH]))}"
            )
        if meaning == "version":
            travel |= _version(value, table)
        elif meaning in _CHANGES:
            travel[meaning] = value
        elif meaning == "as_of":
            travel["as_of"] = int(value) if value.isdecimal() else value
        elif meaning == "snapshot_id":
            if not value.isdecimal():
                raise InvalidError(f"table {table.name}: {key!r} is {value!r}; expected an integer")
            travel[meaning] = int(value)
        elif meaning in _ROWS:
            if value.lower() not in ("true", "false"):
                raise InvalidError(
                    f"table {table.name}: {key!r} is {value!r}; expected true or false"
                )
            travel[meaning] = value.lower() == "true"
        else:
            travel[meaning] = value
    return travel


def _stored_option_name(key: str) -> str:
    try:
        return stored_name(key)
    except InvalidError:
        return key  # an unknown option, which no read accepts


def _from_version(version: exp.Version, table: StoredTable) -> dict[str, Any]:
    literal = _literal_of(version, table.name)
    value = str(literal.this)
    if version.name.upper() == "VERSION":
        return _version(value, table)
    # A bare number is in seconds, as in Spark.
    return {"as_of": value if literal.is_string else int(float(value) * 1000)}


def _branch_named(version: exp.Version, table: StoredTable) -> str | None:
    """The branch that VERSION AS OF names, if there is no tag with that name."""
    literal = _literal_of(version, table.name)
    if version.name.upper() != "VERSION" or not literal.is_string:
        return None
    name = str(literal.this)
    is_other = name.isdecimal() or table.metadata.has_tag(name)
    return None if is_other or not has_branch(main_store(table.store), name) else name


def _literal_of(version: exp.Version, table: str) -> exp.Literal:
    """The argument of AS OF. Raises `InvalidError` for anything but a literal."""
    if version.text("kind").upper() != "AS OF":
        raise InvalidError(
            f"table {table}: expected AS OF with a snapshot to read, found {version.sql()}"
        )
    literal = version.expression
    while isinstance(literal, exp.Cast):
        literal = literal.this
    if not isinstance(literal, exp.Literal):
        found = "nothing" if version.expression is None else version.expression.sql()
        raise InvalidError(
            f"table {table}: AS OF requires a literal, such as a number or a quoted time, found "
            f"{found}"
        )
    return literal


def _version(value: str, table: StoredTable) -> dict[str, Any]:
    # Other engines can create tags that consist of digits. As in these engines, a tag takes
    # precedence over an id.
    is_id = value.isdecimal() and not table.metadata.has_tag(value)
    return {"snapshot_id": int(value)} if is_id else {"tag": value}


def _is_in_lake(node: exp.Table, query: Query, catalog: AttachedCatalog) -> bool:
    """Whether a name that may mean a file is a table. A file must be allowed."""
    name = from_clause.name_of(node)
    if catalog.find_attached(name) is not None:
        return True
    with suppress(NotFoundError, InvalidError):
        entry_of(catalog, from_clause.lake_name(node, catalog)[0])
        return True
    if catalog.allows_external_files:
        return False
    raise outside_error(f"the file {node.sql()}", query.text, node)


# -- pushdown --------------------------------------------------------------------------------------

_Needs: TypeAlias = "dict[str, tuple[tuple[str, ...] | None, tuple[Predicate, ...]]]"


def _needs(tree: exp.Expr, fields: Mapping[str, Sequence[Field]]) -> _Needs:
    # The parser must know the fields of a ROW to resolve `r.x`. Other types do not matter.
    types = {
        view: {f.name: f.type.sql() if isinstance(f.type, RowType) else "INT" for f in fields[view]}
        for view in fields
    }
    schema = schema_of(types)
    qualified = qualify(
        tree.copy(), dialect=Keytide, schema=schema, quote_identifiers=False,
        validate_qualify_columns=True, isolate_tables=False,
    )  # fmt: skip
    # A remaining wildcard can mean any column, so all columns are read.

    # Whether the engine determines the columns of something itself. For example, PIVOT groups by
    # the columns that it does not name.
    found = tree.find_all(exp.Pivot, exp.Columns, exp.Star)
    has_wildcards = not all(isinstance(node, exp.Star) and _is_known_star(node) for node in found)
    is_whole = has_wildcards or any(
        not isinstance(star.parent, exp.Count) for star in qualified.find_all(exp.Star)
    )
    needs: _Needs = {}
    for scope in traverse_scope(qualified):
        for alias, source in scope.sources.items():
            if not isinstance(source, exp.Table) or source.name not in fields:
                continue
            renamed = source.args.get("alias") and source.args["alias"].columns
            if renamed or not _has_only(source, {"this", "alias", "joins", "sample"}):
                continue  # its columns are not those of the table, with their own names
            by_name = {f.name.lower(): f for f in fields[source.name]}
            used = {column.name.lower() for column in scope.source_columns(alias)}
            columns = None
            if not is_whole and used <= by_name.keys():
                # At least one column must be read to count rows. The first key column is the
                # cheapest.
                columns = tuple(field.name for name, field in by_name.items() if name in used)
                columns = columns or tuple(field.name for field in by_name.values())[:1]
            needs[source.name] = (columns, tuple(_terms(scope, source, by_name)))
    return needs


def _is_known_star(star: exp.Star) -> bool:
    """COUNT(*), which has no columns, and `*` or `t.*` in the results."""
    parent = star.parent
    results = parent.parent if isinstance(parent, exp.Column) else parent
    return isinstance(parent, exp.Count) or (
        isinstance(results, exp.Select) and _has_only(star, frozenset())
    )


def _terms(scope: Scope, source: exp.Table, fields: Mapping[str, Field]) -> Iterator[Predicate]:
    """The WHERE conditions that concern one table only, if they can be pushed into its read."""
    select = scope.expression
    where, first = select.args.get("where"), select.args.get("from_") or select.args.get("from")
    if where is None or first is None or not _has_only(source, {"this", "alias"}):
        return

    # What happens before WHERE must not depend on other rows: no sample, no join that takes the
    # nearest row, and no join that adds NULLs for a missing row.
    joins = select.args.get("joins") or []
    sides = {(join.side or "").upper() for join in joins} - {""}
    kept = [first.this, *(() if sides else (join.this for join in joins))]
    if (
        not all(_has_only(join, _JOIN) and join.method in ("", "NATURAL") for join in joins)
        # A table inside of parentheses is joined there before it is joined here.
        or not any(relation is source for relation in kept)
        or not sides <= {"LEFT"}
        or not _has_only(select, _AROUND_WHERE)
    ):
        return
    condition = where.this
    for term in condition.flatten() if isinstance(condition, exp.And) else (condition,):
        columns = list(term.find_all(exp.Column))
        is_own = all(c.table == source.alias_or_name for c in columns)
        if columns and is_own and not term.find(exp.Query):
            found = pushdown.pushed_predicate(term, fields)
            if found is not None:
                yield found


_JOIN = {"this", "on", "using", "side", "kind", "method"}
_AROUND_WHERE = {
    "with_", "expressions", "from_", "from", "joins", "laterals", "where", "hint", "distinct",
    "group", "having", "windows", "qualify", "order", "limit", "offset", "sort", "distribute",
    "cluster",
}  # fmt: skip
"""The clauses of a SELECT that produce the rows for WHERE, or process them one by one after it."""


def _has_only(node: exp.Expr, names: Set[str]) -> bool:
    return {name for name, value in node.args.items() if value} <= names
