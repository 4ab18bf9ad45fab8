"""CREATE TABLE: columns, keys and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from keytide.errors import InvalidError
from keytide.options import keys
from keytide.sql.cursor import Cursor
from keytide.sql.dialect import error_at
from keytide.sql.statements import CreateTable, Query
from keytide.types import DataType, Field, parse_sql_type

__all__ = ["column", "column_type", "create_table", "options"]

_AFTER_TYPE = ("COMMENT", "PRIMARY", "DEFAULT", "AFTER", "FIRST")


@dataclass
class _Parts:
    """What has been read of a CREATE TABLE so far."""

    columns: list[Field] = field(default_factory=list)
    primary_key: list[str] = field(default_factory=list)
    partition_by: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    comment: str | None = None


def create_table(cursor: Cursor, query: Callable[[Cursor], Query]) -> CreateTable:
    """Parse what follows CREATE; `query` parses the query behind AS."""
    cursor.expect("TABLE")
    exists_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = ".".join(cursor.path("a table name"))
    parts = _Parts()
    if cursor.peek() == "(":
        cursor.listed(lambda: _element(cursor, parts))
    while _clause(cursor, parts):
        pass
    like = None
    if cursor.accept("LIKE"):
        like = ".".join(cursor.path("a table name"))
        while _clause(cursor, parts):
            pass
    chosen = query(cursor) if cursor.accept("AS") else None
    _take_spark_keys(name, parts)
    return CreateTable(
        name=name,
        columns=tuple(parts.columns),
        primary_key=tuple(parts.primary_key),
        partition_by=tuple(parts.partition_by),
        options=parts.options,
        comment=parts.comment,
        exists_ok=exists_ok,
        like=like,
        query=chosen,
    )


def column(cursor: Cursor) -> tuple[Field, bool]:
    """A column's definition, and whether it is the primary key."""
    name = cursor.name("a column or PRIMARY KEY")
    type_ = column_type(cursor)
    given: dict[str, str] = {}
    is_key = False
    while True:
        start = cursor.start
        if cursor.accept("COMMENT"):
            _once(cursor, start, given, "COMMENT", cursor.string())
        elif cursor.accept("PRIMARY", "KEY"):
            is_key = True
            cursor.accept("NOT", "ENFORCED")
        elif cursor.accept("DEFAULT"):
            _once(cursor, start, given, "DEFAULT", _default(cursor))
        elif cursor.accept("NOT", "NULL"):
            type_ = type_.with_nullable(False)
        else:
            return Field(-1, name, type_, given.get("COMMENT"), given.get("DEFAULT")), is_key


def column_type(cursor: Cursor) -> DataType:
    """A type, NOT NULL included."""
    start = cursor.start
    source = cursor.until(*_AFTER_TYPE)
    if not source:
        raise cursor.error("expected a type")
    try:
        return parse_sql_type(source)
    except InvalidError as error:
        raise error_at(cursor.text, start, str(error)) from error


def options(cursor: Cursor) -> dict[str, str]:
    """`('k' = 'v', ...)`; keys and values may stand without quotes."""
    given: dict[str, str] = {}
    cursor.listed(lambda: _option(cursor, given))
    return given


def _option(cursor: Cursor, given: dict[str, str]) -> None:
    start = cursor.start
    key = cursor.string() if cursor.is_string() else cursor.until("=").strip()
    if key in given:
        raise cursor.error_at(start, f"option {key!r} is given twice")
    cursor.expect("=")
    is_text = cursor.is_string()
    given[key] = cursor.string() if is_text else cursor.until()
    if not given[key] and not is_text:
        raise cursor.error(f"expected a value for option {key!r}")


def _element(cursor: Cursor, parts: _Parts) -> None:
    if cursor.peek() == "CONSTRAINT":
        cursor.expect("CONSTRAINT")
        cursor.name("a constraint's name")
    if cursor.peek() == "PRIMARY" and cursor.peek(1) == "KEY":
        cursor.expect("PRIMARY", "KEY")
        if parts.primary_key:
            raise cursor.error("the primary key is given twice")
        parts.primary_key += cursor.listed(lambda: cursor.name("a column"))
        cursor.accept("NOT", "ENFORCED")
        return
    field_, is_key = column(cursor)
    parts.columns.append(field_)
    if is_key:
        parts.primary_key.append(field_.name)


def _clause(cursor: Cursor, parts: _Parts) -> bool:
    """Take one clause behind the columns, if one comes next."""
    start = cursor.start
    if cursor.accept("USING"):
        engine = cursor.name("a format")
        if engine.lower() not in ("keytide", "paimon"):
            raise cursor.error(
                f"found USING {engine}; this makes keytide tables only, leave USING out"
            )
    elif cursor.accept("COMMENT"):
        if parts.comment is not None:
            raise cursor.error_at(start, "COMMENT is given twice")
        cursor.accept("=")
        parts.comment = cursor.string()
    elif cursor.accept("PARTITIONED", "BY"):
        if parts.partition_by:
            raise cursor.error_at(start, "PARTITIONED BY is given twice")
        parts.partition_by += cursor.listed(lambda: _partition_column(cursor, parts))
    elif cursor.accept("WITH") or cursor.accept("TBLPROPERTIES") or cursor.accept("OPTIONS"):
        given = options(cursor)
        if twice := sorted(given.keys() & parts.options.keys()):
            raise cursor.error_at(start, f"option {twice[0]!r} is given twice")
        parts.options.update(given)
    else:
        return False
    return True


def _partition_column(cursor: Cursor, parts: _Parts) -> str:
    """A column's name, or the definition of a column, as Hive has it."""
    if cursor.peek(1) in (",", ")"):
        return cursor.name("a column")
    field_, _ = column(cursor)
    parts.columns.append(field_)
    return field_.name


def _once(cursor: Cursor, start: int, given: dict[str, str], word: str, value: str) -> None:
    if word in given:
        raise cursor.error_at(start, f"{word} is given twice")
    given[word] = value


def _default(cursor: Cursor) -> str:
    if cursor.is_string():
        return cursor.string()
    return cursor.until("COMMENT", "PRIMARY", "NOT", "AFTER", "FIRST")


def _take_spark_keys(name: str, parts: _Parts) -> None:
    """Spark's SQL names the keys in table properties."""
    for option, names in (
        (keys.PRIMARY_KEY, parts.primary_key),
        (keys.PARTITION, parts.partition_by),
    ):
        listed = parts.options.pop(option, None)
        if listed is None:
            continue
        told = [column.strip() for column in listed.split(",")]
        if names and names != told:
            raise InvalidError(
                f"table {name}: option {option!r} = {listed!r} and the clause that names "
                f"({', '.join(names)}) differ; give one of them"
            )
        names[:] = told
