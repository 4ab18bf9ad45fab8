"""The grammar of maintenance statements from Delta, Iceberg and Paimon.

OPTIMIZE, VACUUM and RESTORE are Delta's syntax. Each one becomes a CALL of a procedure of the
database `sys`, see `keytide.sql.procedures`, with the same rules and errors. Tags and branches in
ALTER TABLE are the syntax of Iceberg and Paimon.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from keytide.sql.cursor import Cursor
from keytide.sql.statements import (
    Call,
    CreateVersionName,
    DropVersionName,
    VersionNameKind,
    WhenTaken,
)

__all__ = ["optimize", "restore", "vacuum", "version_name_of"]


def optimize(cursor: Cursor) -> Call:
    """`OPTIMIZE name [FULL] [WHERE condition] [ZORDER BY (columns)]`: compact all files."""
    cursor.expect("OPTIMIZE")
    named: dict[str, object] = {"table": cursor.table()}
    cursor.accept("FULL")
    if cursor.accept("WHERE"):
        named["where"] = cursor.up_to("ZORDER BY")
    if cursor.accept("ZORDER"):
        cursor.expect("BY")
        columns = cursor.one_or_listed(lambda: cursor.name("a column"))
        named |= {"order_strategy": "zorder", "order_by": ", ".join(columns)}
    return Call("sys.compact", (), named)


def vacuum(cursor: Cursor) -> Call:
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
    return Call("sys.expire_snapshots", (), named)


def restore(cursor: Cursor) -> Call:
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
    return Call("sys.restore", (), named)


def version_name_of(
    cursor: Cursor, table: str
) -> CreateVersionName | DropVersionName | Call | None:
    """Parse an ALTER TABLE action on a tag or a branch, if it is one.

    `CREATE TAG | BRANCH [IF NOT EXISTS] name [AS OF VERSION n] [RETAIN n DAYS]`, `CREATE OR REPLACE
    TAG`, `REPLACE TAG`, `DROP TAG | BRANCH [IF EXISTS] name`, `RENAME TAG | BRANCH name TO other`.
    """
    kind: VersionNameKind
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
            return DropVersionName(table, kind, _name(cursor, kind), missing_ok)
        if cursor.accept("RENAME", kind):
            return _renamed(cursor, table, kind)
    return None


def _created(
    cursor: Cursor, table: str, kind: VersionNameKind, taken: WhenTaken
) -> CreateVersionName:
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
    return CreateVersionName(table, kind, name, version, retained, taken)


def _renamed(cursor: Cursor, table: str, kind: VersionNameKind) -> Call:
    old = _name(cursor, kind)
    cursor.expect("TO")
    new = _name(cursor, kind)
    names = (
        {"tag": old, "target_tag": new} if kind == "TAG" else {"from_branch": old, "to_branch": new}
    )
    return Call(f"sys.rename_{kind.lower()}", (), {"table": table, **names})


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


_UNITS = {
    "DAYS": timedelta(days=1),
    "HOURS": timedelta(hours=1),
    "MINUTES": timedelta(minutes=1),
}
