"""The grammar of CREATE TABLE and ALTER TABLE, in the spellings of Flink and Spark, and of VALUES.

VALUES with plain literals are rows directly from the tokens, without a tree or an engine. A literal
gets a type of the same family as an engine would give it, so a column accepts or refuses a row in
the same way. Everything else is left to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, count
from typing import Any

import pyarrow as pa
from sqlglot import Token, TokenType, exp

from keytide.base.dataclass import dataclass, field
from keytide.definition.schema_evolution import (
    AddColumn,
    After,
    ChangeColumnNullability,
    ChangeColumnType,
    ChangeComment,
    DropColumn,
    First,
    MoveColumn,
    Position,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
)
from keytide.errors import InvalidError
from keytide.options import keys
from keytide.options.keys import key_of
from keytide.sources.source import refuse_secret, refuse_secret_options
from keytide.sql.cursor import Cursor, parse_tree, tokenize
from keytide.sql.statements import CreateExternalTable, CreateTable, Query
from keytide.types import DataType, Field, parse_sql_type

# -- CREATE TABLE ----------------------------------------------------------------------------------


Path = tuple[str, ...]


@dataclass
class _Parts:
    """The parts of a CREATE TABLE that were parsed so far."""

    columns: list[Field] = field(default_factory=list)
    primary_key: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    clauses: dict[str, Any] = field(default_factory=dict)
    """The clauses that can be given only once."""
    unnamed_checks: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """The conditions of CHECKs without a name, each with its columns."""


def create_table(cursor: Cursor, query: Callable[[Cursor], Query]) -> CreateTable:
    """Parse what follows CREATE. `query` parses the query after AS."""
    cursor.expect("TABLE")
    exists_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.table()
    parts = _Parts()
    if cursor.peek() == "(":
        cursor.list_of(lambda: _element(cursor, parts))
    while True:
        start = cursor.start
        if cursor.accept("USING"):
            engine = cursor.name("a format")
            if engine.lower() not in ("keytide", "paimon"):
                raise cursor.error(
                    f"found USING {engine}; only Keytide tables can be created: remove USING, or "
                    "use CREATE EXTERNAL TABLE for existing data of another format"
                )
        elif cursor.accept("PARTITIONED", "BY"):
            names = cursor.list_of(lambda: _partition_column(cursor, parts))
            _once(cursor, start, parts.clauses, "PARTITIONED BY", names)
        elif cursor.accept("LIKE"):
            _once(cursor, start, parts.clauses, "LIKE", cursor.table())
        elif not _comment_or_options(cursor, parts):
            break
    chosen = query(cursor) if cursor.accept("AS") else None
    _name_checks(name, parts)
    partition_by = parts.clauses.get("PARTITIONED BY", [])
    return CreateTable(
        name=name,
        primary_key=_key(name, parts, keys.PRIMARY_KEY, parts.primary_key),
        partition_by=_key(name, parts, keys.PARTITION, partition_by),
        columns=tuple(parts.columns),
        options=parts.options,
        comment=parts.clauses.get("COMMENT"),
        exists_ok=exists_ok,
        like=parts.clauses.get("LIKE"),
        query=chosen,
    )


def create_external_table(cursor: Cursor) -> CreateExternalTable:
    """Parse what follows CREATE EXTERNAL."""
    cursor.expect("TABLE")
    exists_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.table()
    parts = _Parts()
    if cursor.peek() == "(":
        cursor.list_of(lambda: _element(cursor, parts))
    while True:
        start = cursor.start
        if cursor.accept("USING"):
            _once(cursor, start, parts.clauses, "USING", cursor.name("a format"))
        elif cursor.accept("LOCATION"):
            _once(cursor, start, parts.clauses, "LOCATION", cursor.string())
            # This comes before any later error, whose message could show the text of the statement.
            refuse_secret(parts.clauses["LOCATION"])
        else:
            found = _comment_or_options(cursor, parts)
            refuse_secret_options(parts.options)
            if not found:
                break
    for word in ("USING", "LOCATION"):
        if word not in parts.clauses:
            raise cursor.error(f"an external table requires {word}")
    _name_checks(name, parts)
    return CreateExternalTable(
        name=name,
        format=parts.clauses["USING"],
        location=parts.clauses["LOCATION"],
        columns=tuple(parts.columns),
        primary_key=_key(name, parts, keys.PRIMARY_KEY, parts.primary_key),
        options=parts.options,
        comment=parts.clauses.get("COMMENT"),
        exists_ok=exists_ok,
    )


def _element(cursor: Cursor, parts: _Parts) -> None:
    if _is_check_next(cursor):
        _add_check(cursor, parts)
        return
    constraint = cursor.accept("CONSTRAINT") and cursor.name("a constraint's name")
    if not cursor.accept("PRIMARY", "KEY"):
        if constraint:
            raise cursor.error("expected PRIMARY KEY or CHECK")
        parts.columns.append(_column(cursor, parts))
        return
    if parts.primary_key:
        raise cursor.error("the primary key is given twice")
    parts.primary_key += cursor.list_of(lambda: cursor.name("a column"))
    cursor.accept("NOT", "ENFORCED")


def _is_check_next(cursor: Cursor) -> bool:
    """Whether a CHECK comes next, with or without a name, and no column `check`."""
    is_named = cursor.peek() == "CONSTRAINT" and cursor.peek(2) == "CHECK"
    return is_named or (cursor.peek() == "CHECK" and cursor.peek(1) == "(")


def _add_check(cursor: Cursor, parts: _Parts) -> None:
    if cursor.peek() == "CHECK":
        condition = check(cursor)
        tree = parse_tree(condition, tokenize(condition), 0)
        columns = {column.name.lower(): column.name for column in tree.find_all(exp.Column)}
        parts.unnamed_checks.append((condition, tuple(columns.values())))
        return
    cursor.expect("CONSTRAINT")
    constraint, start = cursor.name("a constraint's name"), cursor.start
    key = key_of(keys.CONSTRAINT, constraint)
    if key in parts.options:
        raise cursor.error_at(start, f"the constraint {constraint!r} is given twice")
    parts.options[key] = check(cursor)


def _name_checks(table: str, parts: _Parts) -> None:
    """Name the remaining CHECKs as PostgreSQL does: `t_v_check`, `t_check`, `t_check1`."""
    own = table.split(".")[-1]
    for condition, columns in parts.unnamed_checks:
        name = "_".join([own, *(columns if len(columns) == 1 else ()), "check"])
        names = chain([name], (f"{name}{number}" for number in count(1)))
        possible = (key_of(keys.CONSTRAINT, each) for each in names)
        key = next(key for key in possible if key not in parts.options)
        parts.options[key] = condition


def check(cursor: Cursor) -> str:
    """The condition of CHECK."""
    cursor.expect("CHECK")
    start, condition = cursor.start, cursor.bracketed()
    if not condition:
        raise cursor.error_at(start, "expected a condition in parentheses")
    return condition


def _comment_or_options(cursor: Cursor, parts: _Parts) -> bool:
    """Parse COMMENT or options, if one of them comes next."""
    start = cursor.start
    if cursor.accept("COMMENT"):
        cursor.accept("=")
        _once(cursor, start, parts.clauses, "COMMENT", cursor.string())
    elif cursor.accept("WITH") or cursor.accept("TBLPROPERTIES") or cursor.accept("OPTIONS"):
        given = options(cursor)
        if twice := sorted(given.keys() & parts.options.keys()):
            raise cursor.error_at(start, f"option {twice[0]!r} is given twice")
        parts.options.update(given)
    else:
        return False
    return True


def _once(cursor: Cursor, start: int, given: dict[str, Any], word: str, value: Any) -> None:
    if word in given:
        raise cursor.error_at(start, f"{word} is given twice")
    given[word] = value


def _partition_column(cursor: Cursor, parts: _Parts) -> str:
    """A column name, or a column definition as in Hive."""
    if cursor.peek(1) in (",", ")"):
        return cursor.name("a column")
    parts.columns.append(_column(cursor, parts))
    return parts.columns[-1].name


def _key(table: str, parts: _Parts, option: str, names: Sequence[str]) -> tuple[str, ...]:
    """The columns from a clause, or from a table property as in Spark SQL."""
    listed = parts.options.pop(option, None)
    if listed is None:
        return tuple(names)
    listed_names = [name.strip() for name in listed.split(",")]
    if names and names != listed_names:
        raise InvalidError(
            f"table {table}: option {option!r} = {listed!r} contradicts the clause that names "
            f"({', '.join(names)}); give only one of them"
        )
    return tuple(listed_names)


# -- options ---------------------------------------------------------------------------------------


def options(cursor: Cursor) -> dict[str, str]:
    """Parse `('k' = 'v', ...)`. Quotes are optional."""
    given: dict[str, str] = {}
    cursor.list_of(lambda: _option(cursor, given))
    return given


def _option(cursor: Cursor, given: dict[str, str]) -> None:
    start = cursor.start
    key = _text(cursor, "=")
    if key in given:
        raise cursor.error_at(start, f"option {key!r} is given twice")
    cursor.expect("=")
    is_text = cursor.is_string()
    given[key] = _text(cursor)
    if not given[key] and not is_text:
        raise cursor.error(f"expected a value for option {key!r}")


def _text(cursor: Cursor, *stops: str) -> str:
    """A quoted string, or the text before some words or the next comma or bracket."""
    return cursor.string() if cursor.is_string() else cursor.until(*stops)


# -- columns ---------------------------------------------------------------------------------------

_AFTER_TYPE = ("COMMENT", "PRIMARY", "AFTER", "FIRST", "GENERATED", "CHECK", "CONSTRAINT")


def _column(cursor: Cursor, parts: _Parts | None = None) -> Field:
    """A column definition. In CREATE TABLE it can be part of the key, and can be generated."""
    name = cursor.name("a column or PRIMARY KEY")
    type_ = _type(cursor)
    given: dict[str, str] = {}
    while True:
        start = cursor.start
        if parts is not None and _is_check_next(cursor):
            _add_check(cursor, parts)
        elif cursor.accept("COMMENT"):
            _once(cursor, start, given, "COMMENT", cursor.string())
        elif parts is not None and cursor.accept("GENERATED", "ALWAYS", "AS"):
            place, expression = cursor.start, cursor.bracketed()
            if not expression:
                raise cursor.error_at(place, "expected an expression in parentheses")
            _once(cursor, start, given, "GENERATED", expression)
            parts.options[key_of(keys.GENERATED, name)] = expression
        elif parts is not None and cursor.accept("PRIMARY", "KEY"):
            parts.primary_key.append(name)
            cursor.accept("NOT", "ENFORCED")
        elif cursor.accept("DEFAULT"):
            _once(cursor, start, given, "DEFAULT", _text(cursor, *_AFTER_TYPE, "NOT"))
        elif cursor.accept("NOT", "NULL"):
            type_ = type_.with_nullable(False)
        else:
            return Field(-1, name, type_, given.get("COMMENT"), given.get("DEFAULT"))


def _type(cursor: Cursor) -> DataType:
    """A type, including NOT NULL."""
    start = cursor.start
    source = cursor.until(*_AFTER_TYPE, "DEFAULT")
    if not source:
        raise cursor.error("expected a type")
    try:
        return parse_sql_type(source)
    except InvalidError as error:
        raise cursor.error_at(start, str(error)) from error


# -- ALTER TABLE -----------------------------------------------------------------------------------


def table_changes(cursor: Cursor) -> Iterator[SchemaChange]:
    """Parse what follows ALTER TABLE and the table name."""
    if cursor.accept("SET"):
        cursor.accept("TBLPROPERTIES")
        yield from (SetOption(key, value) for key, value in options(cursor).items())
    elif cursor.accept("RESET") or cursor.accept("UNSET", "TBLPROPERTIES"):
        cursor.accept("IF", "EXISTS")
        yield from (RemoveOption(key) for key in cursor.list_of(lambda: _text(cursor)))
    elif cursor.accept("ADD"):
        _column_word(cursor)
        yield from cursor.one_or_list_of(lambda: _add_column(cursor))
    elif cursor.accept("DROP"):
        _column_word(cursor)
        yield from (DropColumn(path) for path in cursor.one_or_list_of(cursor.path))
    elif cursor.accept("RENAME"):
        _column_word(cursor)
        path = cursor.path()
        cursor.expect("TO")
        yield RenameColumn(path, cursor.name("a column"))
    elif cursor.accept("CHANGE"):
        _column_word(cursor)
        path, new_name = cursor.path(), cursor.name("a column")
        yield from _redefine_column(cursor, path)
        if new_name != path[-1]:
            yield RenameColumn(path, new_name)
    elif cursor.accept("MODIFY"):
        _column_word(cursor)
        for changes in cursor.one_or_list_of(lambda: _redefine_column(cursor, cursor.path())):
            yield from changes
    elif cursor.accept("ALTER"):
        _column_word(cursor)
        path = cursor.path()
        if cursor.accept("TYPE") or cursor.accept("SET", "DATA", "TYPE"):
            yield ChangeColumnType(path, _type(cursor))
        elif cursor.accept("DROP", "NOT", "NULL"):
            yield ChangeColumnNullability(path, nullable=True)
        elif cursor.accept("SET", "NOT", "NULL"):
            yield ChangeColumnNullability(path, nullable=False)
        else:
            found = _comment_and_position(cursor, path)
            if not found:
                what = "TYPE, COMMENT, FIRST, AFTER, SET NOT NULL or DROP NOT NULL"
                raise cursor.error(f"expected {what}")
            yield from found
    else:
        raise cursor.error("expected SET, RESET, ADD, DROP, RENAME, MODIFY or ALTER")


def _column_word(cursor: Cursor) -> None:
    if not cursor.accept("COLUMNS"):
        cursor.accept("COLUMN")


def _add_column(cursor: Cursor) -> AddColumn:
    outer = []
    while cursor.peek(1) == ".":
        outer.append(cursor.name())
        cursor.expect(".")
    added = _column(cursor)
    return AddColumn(
        (*outer, added.name), added.type, added.description, _position(cursor), added.default_value
    )


def _redefine_column(cursor: Cursor, path: Path) -> list[SchemaChange]:
    """The rest of a column redefinition."""
    return [ChangeColumnType(path, _type(cursor)), *_comment_and_position(cursor, path)]


def _comment_and_position(cursor: Cursor, path: Path) -> list[SchemaChange]:
    """Parse COMMENT and a position, if they come next."""
    changes: list[SchemaChange] = []
    if cursor.accept("COMMENT"):
        changes.append(ChangeComment(cursor.string(), path))
    position = _position(cursor)
    return changes if position is None else [*changes, MoveColumn(path, position)]


def _position(cursor: Cursor) -> Position | None:
    if cursor.accept("FIRST"):
        return First()
    return After(cursor.name("a column")) if cursor.accept("AFTER") else None


# -- VALUES with plain literals --------------------------------------------------------------------


_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_BOOLEANS = {TokenType.NULL: None, TokenType.TRUE: True, TokenType.FALSE: False}
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")

_Cell = tuple[TokenType, str]


def literal_rows(tokens: Sequence[Token]) -> pa.Table | None:
    """The rows of `(literal, ...), (literal, ...)`, or None for anything else."""
    cells: list[_Cell] = []
    for token in tokens:
        type_, text = token.token_type, str(token.text)
        if type_ is TokenType.NUMBER and cells and cells[-1][0] is TokenType.DASH:
            cells[-1] = (type_, f"-{text}")
        else:
            cells.append((type_, text))
    types = [*(type_ for type_, _ in cells), TokenType.COMMA]
    if TokenType.R_PAREN not in types:
        return None
    stride = types.index(TokenType.R_PAREN) + 2  # a row and the comma after it
    if stride % 2 or len(types) % stride:
        return None

    # All rows must have brackets and commas in the same places as the first one.
    between = [TokenType.COMMA] * (stride // 2 - 2)
    expected = [TokenType.L_PAREN, *between, TokenType.R_PAREN, TokenType.COMMA]
    for place, type_ in zip([*range(0, stride, 2), stride - 1], expected, strict=True):
        if set(types[place::stride]) != {type_}:
            return None
    columns = []
    for place in range(1, stride - 2, 2):
        column = cells[place::stride]
        kinds = {type_ for type_, _ in column} - {TokenType.NULL}
        if kinds == {TokenType.STRING}:
            values = [text if type_ is TokenType.STRING else None for type_, text in column]
            array = pa.array(values, pa.string())
        elif kinds == {TokenType.NUMBER}:
            array = _numbers(
                [text if type_ is TokenType.NUMBER else None for type_, text in column]
            )
        elif kinds <= _BOOLEANS.keys():
            flags = [_BOOLEANS[type_] for type_, _ in column]
            array = pa.array(flags, pa.bool_() if kinds else pa.null())
        else:
            return None  # mixed types, or anything but literals
        if array is None:
            return None
        columns.append(array)
    return pa.table(columns, names=[f"col{i}" for i in range(len(columns))])


def _numbers(texts: Sequence[str | None]) -> pa.Array | None:
    if not all(text is None or _NUMBER.fullmatch(text.removeprefix("-")) for text in texts):
        return None
    if any(text is not None and "." in text for text in texts):
        try:
            return pa.array([None if text is None else Decimal(text) for text in texts])
        except pa.ArrowInvalid:
            return None  # more digits than a DECIMAL can hold
    values = [None if text is None else int(text) for text in texts]
    known = [value for value in values if value is not None]
    if min(known) in _INT32 and max(known) in _INT32:
        return pa.array(values, pa.int32())
    if min(known) in _INT64 and max(known) in _INT64:
        return pa.array(values, pa.int64())
    return None
