"""The grammar of SQL text: statements, databases, maintenance, tags and branches.

sqlglot parses queries, expressions and the statements that change rows. All other statements are
parsed here from the same tokens, because their types and clauses are those of the table format, and
sqlglot drops some of them. SCHEMA is a synonym of DATABASE.

OPTIMIZE, VACUUM and RESTORE are Delta's syntax. Each one becomes a CALL of a procedure of the
database `sys`, see `keytide.sql.procedures`, with the same rules and errors. Tags and branches in
ALTER TABLE are the syntax of Iceberg and Paimon on Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Literal, TypeAlias

from sqlglot import Token, TokenType, exp

from keytide.errors import AlreadyExistsError, InvalidError, NotFoundError, UnsupportedError
from keytide.maintenance import actions, branches, tags
from keytide.snapshot.stored_table import StoredTable
from keytide.sql import statements
from keytide.sql.cursor import Cursor, error_at, tokenize
from keytide.sql.definition_grammar import (
    check,
    create_external_table,
    create_table,
    literal_rows,
    options,
    table_changes,
)
from keytide.sql.dml_grammar import auto_cdc, change
from keytide.sql.history_procedures import place_of_version

# -- maintenance -----------------------------------------------------------------------------------


def optimize(cursor: Cursor) -> statements.Call:
    """`OPTIMIZE name [FULL] [WHERE condition] [ZORDER BY (columns)]`: compact all files."""
    cursor.expect("OPTIMIZE")
    named: dict[str, object] = {"table": cursor.table()}
    cursor.accept("FULL")
    if cursor.accept("WHERE"):
        named["where"] = cursor.up_to("ZORDER BY")
    if cursor.accept("ZORDER"):
        cursor.expect("BY")
        columns = cursor.one_or_list_of(lambda: cursor.name("a column"))
        named |= {"order_strategy": "zorder", "order_by": ", ".join(columns)}
    return statements.Call("sys.compact", (), named)


def vacuum(cursor: Cursor) -> statements.Call:
    """`VACUUM name [RETAIN n HOURS] [DRY RUN]`: expire older snapshots and their files.

    Without RETAIN, the options of the table determine what expires.
    """
    cursor.expect("VACUUM")
    named: dict[str, object] = {"table": cursor.table()}
    if cursor.accept("RETAIN"):
        named["older_than"] = datetime.now(timezone.utc) - _time_span(cursor)
    if cursor.accept("DRY"):
        cursor.expect("RUN")
        named["dry_run"] = True
    return statements.Call("sys.expire_snapshots", (), named)


def restore(cursor: Cursor) -> statements.Call:
    """`RESTORE [TABLE] name TO [VERSION | TIMESTAMP] AS OF ...`, in a new commit."""
    cursor.expect("RESTORE")
    cursor.accept("TABLE")
    named: dict[str, object] = {"table": cursor.table()}
    cursor.expect("TO")
    if cursor.accept("TIMESTAMP"):
        cursor.expect("AS", "OF")
        named["timestamp"] = cursor.string()
    else:
        named["version"] = _version(cursor)
    return statements.Call("sys.restore", (), named)


def version_name_of(
    cursor: Cursor, table: str
) -> statements.CreateVersionName | statements.DropVersionName | statements.Call | None:
    """Parse an ALTER TABLE action on a tag or a branch, if it is one.

    `CREATE TAG | BRANCH [IF NOT EXISTS] name [AS OF VERSION n] [RETAIN n DAYS]`, `CREATE OR REPLACE
    TAG`, `REPLACE TAG`, `DROP TAG | BRANCH [IF EXISTS] name`, `RENAME TAG | BRANCH name TO other`.
    """
    kind: statements.VersionNameKind
    for kind in ("TAG", "BRANCH"):
        if cursor.accept("CREATE", "OR", "REPLACE", kind):
            return _created(cursor, table, kind, "replace")
        if cursor.accept("REPLACE", kind):
            return _created(cursor, table, kind, "need")
        if cursor.accept("CREATE", kind):
            if_missing = cursor.accept("IF", "NOT", "EXISTS")
            return _created(cursor, table, kind, "keep" if if_missing else "refuse")
        if cursor.accept("DROP", kind):
            missing_ok = cursor.accept("IF", "EXISTS")
            return statements.DropVersionName(table, kind, _name(cursor, kind), missing_ok)
        if cursor.accept("RENAME", kind):
            old = _name(cursor, kind)
            cursor.expect("TO")
            new = _name(cursor, kind)
            names = (
                {"tag": old, "target_tag": new}
                if kind == "TAG"
                else {"from_branch": old, "to_branch": new}
            )
            return statements.Call(f"sys.rename_{kind.lower()}", (), {"table": table, **names})
    return None


def _created(
    cursor: Cursor, table: str, kind: statements.VersionNameKind, taken: statements.NamePolicy
) -> statements.CreateVersionName:
    if kind == "BRANCH" and taken in ("replace", "need"):
        raise cursor.error(
            "a branch cannot be replaced, because it can contain rows of its own: DROP BRANCH it "
            "first"
        )
    name = _name(cursor, kind)
    version = _version(cursor) if cursor.peek() in ("AS", "VERSION") else None
    if kind == "BRANCH" and cursor.peek() in ("RETAIN", "WITH"):
        raise cursor.error(
            "a branch is kept until it is dropped, so it has no retention; remove RETAIN"
        )
    span = _time_span(cursor) if cursor.accept("RETAIN") else None
    retained = None if span is None else f"{span.total_seconds():.0f} s"
    return statements.CreateVersionName(table, kind, name, version, retained, taken)


def _name(cursor: Cursor, kind: str) -> str:
    return cursor.string() if cursor.is_string() else cursor.name(f"the name of a {kind.lower()}")


def _version(cursor: Cursor) -> str:
    """`VERSION AS OF 7` as in Delta, or `AS OF VERSION 7` as in Iceberg. Also for a tag."""
    if not cursor.accept("AS", "OF", "VERSION"):
        cursor.expect("VERSION", "AS", "OF")
    return cursor.string() if cursor.is_string() else cursor.name("a snapshot's id, or 'a tag'")


def _time_span(cursor: Cursor) -> timedelta:
    start = cursor.start
    count, unit = cursor.name("a number of HOURS or DAYS"), cursor.name("HOURS or DAYS")
    if not count.isdecimal() or unit.upper() not in _UNITS:
        raise cursor.error_at(start, f"expected RETAIN n {' | '.join(_UNITS)}")
    return int(count) * _UNITS[unit.upper()]


_UNITS = {"DAYS": timedelta(days=1), "HOURS": timedelta(hours=1), "MINUTES": timedelta(minutes=1)}


# -- SQL text --------------------------------------------------------------------------------------


_Hint: TypeAlias = "dict[str, str]"


def parse_statements(text: str) -> list[statements.Statement]:
    """The statements of a text, separated by semicolons.

    Raises `InvalidError`, with the line and a pointer to the position, for text that does not
    parse.
    """
    if not isinstance(text, str):
        raise InvalidError(f"the SQL is a {type(text).__name__}; expected a string")
    tokens = tokenize(text)
    hints = options_in_hints(text, tokens)
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            parts.append([])
        else:
            parts[-1].append(token)
    parsed = []
    for part in filter(None, parts):
        first, last = int(part[0].start), int(part[-1].end) + 1
        own_hints = {place: hint for place, hint in hints.items() if first < place <= last}
        cursor = Cursor(text, part, own_hints)
        parse = _STATEMENTS.get(cursor.peek())
        if parse is None:
            known = ", ".join(sorted({*_STATEMENTS} - {"", "("}))
            raise cursor.error(f"expected a statement ({known})")
        try:
            parsed.append(parse(cursor))
        except RecursionError as error:
            message = "the statement is nested too deeply; split it into several statements"
            raise error_at(text, first, message) from error
        cursor.expect_end()
    return parsed


def parse_query(text: str, start: int = 0) -> statements.Query:
    """The query that begins at a position of a text and includes the rest of it.

    Raises `InvalidError`, with the line and a pointer to the position, for text that does not
    parse.
    """
    # The leading blanks give its tokens their positions in the whole text.
    tokens = tokenize(" " * start + text[start:])
    cursor = Cursor(text, tokens, options_in_hints(" " * start + text[start:], tokens))
    query = _query(cursor)
    cursor.expect_end()
    return query


# -- queries ---------------------------------------------------------------------------------------


def _query(cursor: Cursor) -> statements.Query:
    if cursor.at_end:
        raise cursor.error("expected a query")
    tree = cursor.tree()
    if isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge):
        raise cursor.error_at(
            cursor.start,
            "WITH is only allowed before queries; in an INSERT, write it after the table name "
            "(INSERT INTO t WITH ... SELECT ...), in other changes inside the subquery that uses "
            "it",
        )
    if not isinstance(tree, exp.Query | exp.Values):
        raise cursor.error_at(cursor.start, "expected a query")
    return cursor.query(tree)


_COMMENT = re.compile(r"--[^\n]*|/\*(?P<hint>\+)?(?P<inside>.*?)\*/", re.DOTALL)


def options_in_hints(text: str, tokens: Sequence[Token]) -> dict[int, _Hint]:
    """The options in hints, by the position where the token before them ends.

    A hint after SELECT belongs to the engine, and is part of the query.
    """
    found: dict[int, _Hint] = {}
    if "/*+" not in text:
        return found
    ends = [0, *(int(token.end) + 1 for token in tokens)]
    starts = [*(int(token.start) for token in tokens), len(text)]
    for token, end, until in zip([None, *tokens], ends, starts, strict=True):
        for comment in _COMMENT.finditer(text, end, until):
            if not comment["hint"] or (token is not None and token.text.upper() == "SELECT"):
                continue
            if token is None or token.token_type == TokenType.SEMICOLON:
                place, message = comment.start(), "a hint belongs into a statement"
                raise error_at(text, place, message)

            # The leading blanks give its tokens their positions in the whole text.
            start = comment.start("inside")
            inside = Cursor(comment.string, tokenize(" " * start + comment["inside"]))
            inside.expect("OPTIONS")
            given = options(inside)
            inside.expect_end()
            found[end] = {**found.get(end, {}), **given}
    return found


# -- statements ------------------------------------------------------------------------------------


def _create(cursor: Cursor) -> statements.Statement:
    cursor.expect("CREATE")
    if cursor.accept("EXTERNAL"):
        return create_external_table(cursor)
    if cursor.peek() in _DATABASE:
        cursor.accept(cursor.peek())
        exists_ok = cursor.accept("IF", "NOT", "EXISTS")
        name, comment = cursor.name("the name of a database"), None
        if cursor.accept("COMMENT"):
            cursor.accept("=")
            comment = cursor.string()
        return statements.CreateDatabase(name, comment, exists_ok)
    if cursor.accept("FLOW"):
        flow = ".".join(cursor.path("the name of a flow"))
        cursor.expect("AS")
        return auto_cdc(cursor, flow)
    replaces = cursor.accept("OR", "REPLACE")
    if replaces or cursor.peek() == "VIEW":
        cursor.expect("VIEW")
        exists_ok = cursor.accept("IF", "NOT", "EXISTS")
        if exists_ok and replaces:
            raise cursor.error("OR REPLACE and IF NOT EXISTS cannot be combined")
        name = cursor.table()
        columns = cursor.list_of(lambda: cursor.name("a column")) if cursor.peek() == "(" else []
        comment = cursor.string() if cursor.accept("COMMENT") else None
        cursor.expect("AS")
        if cursor.peek() not in ("SELECT", "WITH", "VALUES", "("):
            raise cursor.error("expected a query")
        text = cursor.text[cursor.start : cursor.end]
        return statements.CreateView(
            name, text, _query(cursor), tuple(columns), comment, replaces, exists_ok
        )
    return create_table(cursor, _query)


def _insert(cursor: Cursor) -> statements.Insert:
    cursor.expect("INSERT")
    overwrite = cursor.accept("OVERWRITE")
    if not overwrite:
        cursor.expect("INTO")
    cursor.accept("TABLE")
    table = cursor.table()
    partition: dict[str, exp.Expr | None] = {}
    if cursor.accept("PARTITION"):
        cursor.list_of(lambda: _partition_value(cursor, partition))
    columns: list[str] = []
    if cursor.peek() == "(" and cursor.peek(1) not in ("SELECT", "VALUES", "WITH", "("):
        columns = cursor.list_of(lambda: cursor.name("a column"))
    # Plain literals need no engine.
    literals = literal_rows(cursor.rest()[1:]) if cursor.peek() == "VALUES" else None
    if literals is None:
        return statements.Insert(table, _query(cursor), tuple(columns), partition, overwrite)
    cursor.skip()
    return statements.Insert(table, statements.Rows(literals), tuple(columns), partition, overwrite)


def _partition_value(cursor: Cursor, given: dict[str, exp.Expr | None]) -> None:
    start = cursor.start
    name = cursor.name("a partition column")
    if name.lower() in map(str.lower, given):
        raise cursor.error_at(start, f"partition column {name!r} is given twice")
    given[name] = None
    if cursor.accept("="):
        start = cursor.start
        given[name] = value = cursor.value()
        if value.find(exp.Query, exp.Column, exp.Star) is not None:
            raise cursor.error_at(start, f"partition column {name!r} requires a constant")


_DATABASE = ("DATABASE", "SCHEMA")


def _drop(cursor: Cursor) -> statements.Statement:
    cursor.expect("DROP")
    if cursor.peek() in _DATABASE:
        cursor.accept(cursor.peek())
        missing_ok = cursor.accept("IF", "EXISTS")
        name = cursor.name("the name of a database")
        cascade = cursor.accept("CASCADE")
        if not cascade:
            cursor.accept("RESTRICT")
        return statements.DropDatabase(name, missing_ok, cascade)
    is_view = cursor.accept("VIEW")
    if not is_view:
        cursor.expect("TABLE")
    missing_ok = cursor.accept("IF", "EXISTS")
    name = cursor.table()
    return (
        statements.DropView(name, missing_ok) if is_view else statements.DropTable(name, missing_ok)
    )


def _truncate(cursor: Cursor) -> statements.Truncate:
    cursor.expect("TRUNCATE", "TABLE")
    table = cursor.table()
    return statements.Truncate(table, (_partition(cursor),) if cursor.accept("PARTITION") else ())


def _comment(cursor: Cursor) -> statements.CommentOn:
    cursor.expect("COMMENT", "ON")
    kind: Literal["TABLE", "COLUMN"] = "TABLE" if cursor.accept("TABLE") else "COLUMN"
    if kind == "COLUMN":
        cursor.expect("COLUMN")
    start = cursor.start
    path = cursor.path("a table" if kind == "TABLE" else "a column")
    if kind == "COLUMN" and len(path) < 2:
        raise cursor.error_at(start, "expected table.column")
    cursor.expect("IS")
    return statements.CommentOn(kind, path, None if cursor.accept("NULL") else cursor.string())


def _use(cursor: Cursor) -> statements.Use:
    cursor.expect("USE")
    if cursor.peek() in _DATABASE and cursor.peek(1):
        cursor.accept(cursor.peek())
    return statements.Use(cursor.name("the name of a database"))


def _alter(cursor: Cursor) -> statements.Statement:
    cursor.expect("ALTER", "TABLE")
    table = cursor.table()
    if cursor.accept("RENAME", "TO"):
        return statements.RenameTable(table, cursor.table())
    if cursor.accept("ADD", "CONSTRAINT"):
        return statements.AddConstraint(table, cursor.name("a constraint's name"), check(cursor))
    if cursor.accept("DROP", "CONSTRAINT"):
        missing_ok = cursor.accept("IF", "EXISTS")
        return statements.DropConstraint(table, cursor.name("a constraint's name"), missing_ok)
    about_versions = version_name_of(cursor, table)
    if about_versions is not None:
        return about_versions
    is_drop = cursor.accept("DROP", "IF", "EXISTS", "PARTITION")
    if not (is_drop or cursor.accept("DROP", "PARTITION")):
        return statements.AlterTable(table, tuple(table_changes(cursor)))
    partitions = [_partition(cursor)]
    while cursor.accept(","):
        cursor.expect("PARTITION")
        partitions.append(_partition(cursor))
    return statements.Truncate(table, tuple(partitions))


def _partition(cursor: Cursor) -> dict[str, exp.Expr | None]:
    """The values of a PARTITION clause."""
    given: dict[str, exp.Expr | None] = {}
    start = cursor.start
    cursor.list_of(lambda: _partition_value(cursor, given))
    missing = [name for name, value in given.items() if value is None]
    if missing:
        raise cursor.error_at(start, f"partition column {missing[0]!r} has no value; give one")
    return given


_ABOUT_ONE = (
    "CREATE TABLE", "CREATE VIEW", "COLUMNS", "PARTITIONS", "TAGS", "BRANCHES", "TBLPROPERTIES",
)  # fmt: skip


def _show(cursor: Cursor) -> statements.Show:
    cursor.expect("SHOW")
    if cursor.accept("DATABASES") or cursor.accept("SCHEMAS"):
        return statements.Show("DATABASES", like=cursor.string() if cursor.accept("LIKE") else None)
    if cursor.accept("CURRENT", "DATABASE"):
        return statements.Show("CURRENT DATABASE")
    for what in ("TABLES", "VIEWS"):
        if cursor.accept(what):
            name = cursor.name() if cursor.accept("IN") or cursor.accept("FROM") else None
            return statements.Show(what, name, cursor.string() if cursor.accept("LIKE") else None)
    for what in _ABOUT_ONE:
        if cursor.accept(*what.split()):
            if what == "COLUMNS" and not cursor.accept("IN"):
                cursor.expect("FROM")
            return statements.Show(what, cursor.table())
    raise cursor.error(
        f"expected TABLES, VIEWS, DATABASES, CURRENT DATABASE, {', '.join(_ABOUT_ONE[:-1])} or "
        f"{_ABOUT_ONE[-1]}"
    )


def _describe(cursor: Cursor) -> statements.Statement:
    if not cursor.accept("DESC"):
        cursor.expect("DESCRIBE")
    if cursor.peek() in _DATABASE and cursor.peek(1) not in ("", "."):
        cursor.accept(cursor.peek())
        cursor.accept("EXTENDED")
        return statements.DescribeDatabase(cursor.name("the name of a database"))
    if cursor.peek() == "HISTORY" and cursor.peek(1) not in ("", "."):
        cursor.accept("HISTORY")
        table, limit = cursor.table(), None
        if cursor.accept("LIMIT"):
            start, found = cursor.start, cursor.until()
            if not found.isdecimal():
                raise cursor.error_at(start, "expected a number of rows, an integer")
            limit = int(found)
        return statements.DescribeHistory(table, limit)
    cursor.accept("TABLE")
    extended = cursor.accept("EXTENDED") or cursor.accept("FORMATTED")
    return statements.Describe(cursor.table(), extended)


def _explain(cursor: Cursor) -> statements.Explain:
    cursor.expect("EXPLAIN")
    analyze = cursor.accept("ANALYZE")
    if cursor.peek() in ("DELETE", "UPDATE", "MERGE"):
        return statements.Explain(change(cursor), analyze)
    if cursor.peek() in _STATEMENTS and _STATEMENTS[cursor.peek()] is not _query:
        what = f"EXPLAIN{' ANALYZE' if analyze else ''} {cursor.peek()}"
        message = (
            f"{what} is not supported: EXPLAIN supports queries, DELETE, UPDATE and MERGE; run "
            "the statement itself, or explain its query"
        )
        raise UnsupportedError(str(cursor.error(message)))
    return statements.Explain(_query(cursor), analyze)


def _call(cursor: Cursor) -> statements.Call:
    cursor.expect("CALL")
    procedure = ".".join(cursor.path("a procedure"))
    values: list[object] = []
    named: dict[str, object] = {}
    if not cursor.accept("(", ")"):
        cursor.list_of(lambda: _argument(cursor, values, named))
    return statements.Call(procedure, tuple(values), named)


def _argument(cursor: Cursor, values: list[object], named: dict[str, object]) -> None:
    if cursor.peek(1) != "=>":
        if named:
            raise cursor.error("expected a named argument after named ones")
        values.append(_literal(cursor))
        return
    name = cursor.name("an argument's name")
    cursor.expect("=>")
    if name in named:
        raise cursor.error(f"argument {name!r} is given twice")
    named[name] = _literal(cursor)


def _literal(cursor: Cursor) -> object:
    start, tree = cursor.start, cursor.value()
    try:
        if isinstance(tree, exp.Cast) and tree.this.is_string:
            # The value of `DATE '...'` and `TIMESTAMP '...'`, in UTC unless it contains an offset.
            kind = tree.to.this
            text = str(tree.this.this)
            if kind == exp.DType.DATE:
                return date.fromisoformat(text)
            if kind in (exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPTZ):
                return datetime.fromisoformat(text)
            raise ValueError(kind)
        value: object = tree.to_py()
    except ValueError:
        raise cursor.error_at(
            start,
            "expected a literal: a number, TRUE, FALSE, NULL, 'text', DATE '2026-01-31' or "
            "TIMESTAMP '2026-01-31 12:00:00'",
        ) from None
    return float(value) if isinstance(value, Decimal) else value


_STATEMENTS: dict[str, Callable[[Cursor], statements.Statement]] = {
    "SELECT": _query,
    "WITH": _query,
    "VALUES": _query,
    "(": _query,
    "CREATE": _create,
    "INSERT": _insert,
    "ALTER": _alter,
    "DELETE": change,
    "UPDATE": change,
    "MERGE": change,
    "DROP": _drop,
    "TRUNCATE": _truncate,
    "USE": _use,
    "SHOW": _show,
    "DESCRIBE": _describe,
    "DESC": _describe,
    "EXPLAIN": _explain,
    "CALL": _call,
    "COMMENT": _comment,
    "AUTO": auto_cdc,
    "APPLY": auto_cdc,
    "OPTIMIZE": optimize,
    "VACUUM": vacuum,
    "RESTORE": restore,
}


# -- tags and branches -----------------------------------------------------------------------------


def create_version_name(table: StoredTable, wanted: statements.CreateVersionName) -> None:
    """Create a tag or a branch from a snapshot, by default the latest.

    A branch starts with the rows of that snapshot. Raises `NotFoundError` for a snapshot or tag
    that does not exist, `AlreadyExistsError` for a name that is taken (unless the statement allows
    it), and what else `create_tag`, `replace_tag` and `create_branch` raise.
    """
    place = None if wanted.version is None else place_of_version(table.metadata, wanted.version)
    try:
        if wanted.kind == "BRANCH":
            begins = {"tag": place} if isinstance(place, str) else {"snapshot_id": place}
            branches.create_branch(table, wanted.name, **begins)
            return
        snapshot_id = table.metadata.tag(place).id if isinstance(place, str) else place
        is_there = wanted.name_policy == "replace" and table.metadata.has_tag(wanted.name)
        make = tags.replace_tag if is_there or wanted.name_policy == "need" else tags.create_tag
        make(table, wanted.name, snapshot_id, wanted.time_retained)
    except AlreadyExistsError:
        if wanted.name_policy != "keep":
            raise


def drop_version_name(table: StoredTable, wanted: statements.DropVersionName) -> None:
    """Drop a tag or a branch. Raises `NotFoundError` unless it may be missing."""
    drop = tags.delete_tag if wanted.kind == "TAG" else actions.delete_branch
    try:
        drop(table, wanted.name)
    except NotFoundError:
        if not wanted.missing_ok:
            raise
