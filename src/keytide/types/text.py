"""Parsing of types: scalar types of a schema file, and all types in SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from keytide.base.arguments import checked
from keytide.errors import InvalidError
from keytide.types.logical import (
    BYTES,
    PARAMETERS_OF,
    STRING,
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
    VectorType,
)

__all__ = ["TypeText", "nullability", "parse_sql_type", "parse_stored_text"]

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^']|'')*'|[<>(),:]|[^\s<>(),:`']+|\S)")

_SYNONYM_OF = {"INTEGER": "INT", "NUMERIC": "DECIMAL", "DEC": "DECIMAL"}

_SQL_SYNONYM_OF = {
    "BOOL": "BOOLEAN",
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TEXT": "STRING",
    "TIMESTAMP_NTZ": "TIMESTAMP",
    "STRUCT": "ROW",
}


@checked
def parse_sql_type(text: str) -> DataType:
    """Parse a column type in SQL: Flink's names, and Spark's if they do not conflict.

    Nested types have their SQL form (``ARRAY<INT>``, ``ROW<a INT, b STRING NOT NULL>``, ``STRUCT<a:
    INT>``). TIMESTAMP has no time zone. Field ids are -1. Raises InvalidError, with the text and
    the position.
    """
    return _whole(TypeText(text), _sql_type)


def parse_stored_text(text: str) -> DataType:
    """Parse a scalar type of a schema file. Raises InvalidError like `parse_sql_type`."""
    return _whole(TypeText(text), _stored_type)


class TypeText:
    """A cursor over the tokens of one type text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matches = list(_TOKEN.finditer(text))
        self.place = 0

    def peek(self) -> str:
        """The next token in upper case, empty at the end."""
        at_end = self.place >= len(self.matches)
        return "" if at_end else self.matches[self.place].group(1).upper()

    def take(self) -> str:
        """The next token unchanged. Raises InvalidError at the end."""
        if self.place >= len(self.matches):
            raise self.error("unexpected end")
        self.place += 1
        return self.matches[self.place - 1].group(1)

    def accept(self, *words: str) -> bool:
        """Consume these words if they follow, and return whether they did."""
        ahead = [m.group(1).upper() for m in self.matches[self.place : self.place + len(words)]]
        if ahead != list(words):
            return False
        self.place += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Consume these words. Raises InvalidError if others follow."""
        if not self.accept(*words):
            raise self.error(f"expected {' '.join(words)!r}, found {self.peek() or 'the end'!r}")

    def expect_end(self) -> None:
        """Raises InvalidError if there are more tokens."""
        if self.place < len(self.matches):
            raise self.error(f"unexpected {self.peek()!r}")

    def take_int(self) -> int:
        """The next token as an integer. Raises InvalidError if it is not one."""
        token = self.take()
        if not token.isdecimal():
            self.place -= 1
            raise self.error(f"expected a number, found {token!r}")
        return int(token)

    def error(self, cause: str) -> InvalidError:
        """An error with the text, the position and the cause."""
        here = self.matches[self.place].start(1) if self.place < len(self.matches) else None
        where = "at the end" if here is None else f"at position {here}"
        return InvalidError(f"Could not parse type {self.text!r} {where}: {cause}")


def _whole(text: TypeText, parse: Callable[[TypeText], DataType]) -> DataType:
    parsed = parse(text)
    text.expect_end()
    return parsed


def nullability(text: TypeText) -> bool:
    """Whether a type is nullable: not if NOT NULL follows its name."""
    if text.accept("NOT", "NULL"):
        return False
    text.accept("NULL")
    return True


def _stored_type(text: TypeText) -> DataType:
    root = text.peek()
    if root in ("ARRAY", "MAP", "MULTISET", "ROW"):
        raise text.error(f"unsupported type {root}: a schema stores nested types as JSON objects")
    if root == "VECTOR":
        return _vector(text, _stored_type)
    return _atomic_type(text, _SYNONYM_OF)


def _sql_type(text: TypeText) -> DataType:
    root = _SQL_SYNONYM_OF.get(text.peek(), text.peek())
    if root in ("ARRAY", "MULTISET"):
        text.take()
        text.expect("<")
        element = _sql_type(text)
        text.expect(">")
        made = ArrayType(element) if root == "ARRAY" else MultisetType(element)
        return made.with_nullable(nullability(text))
    if root == "MAP":
        return _map(text)
    if root == "ROW":
        return _row(text)
    if root == "VECTOR":
        return _vector(text, _sql_type)
    return _atomic_type(text, {**_SYNONYM_OF, **_SQL_SYNONYM_OF})


def _map(text: TypeText) -> DataType:
    text.take()
    text.expect("<")
    key = _sql_type(text)
    text.expect(",")
    value = _sql_type(text)
    text.expect(">")
    return MapType(key, value, nullability(text))


def _vector(text: TypeText, parse_element: Callable[[TypeText], DataType]) -> DataType:
    text.take()
    text.expect("<")
    element = parse_element(text)
    text.expect(",")
    length = text.take_int()
    text.expect(">")
    return VectorType(element, length, nullability(text))


def _row(text: TypeText) -> DataType:
    text.take()
    close = ">" if text.accept("<") else ")"
    if close == ")":
        text.expect("(")
    fields: list[Field] = []
    while not text.accept(close):
        if fields:
            text.expect(",")
        fields.append(_sql_field(text))
    return RowType(tuple(fields), nullability(text))


def _sql_field(text: TypeText) -> Field:
    name = _unquoted(text.take())
    text.accept(":")
    type_ = _sql_type(text)
    text.accept("COMMENT")
    description = _unquoted(text.take()) if text.peek().startswith("'") else None
    default = text.take() if text.accept("DEFAULT") else None
    return Field(-1, name, type_, description, default)


def _unquoted(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote) if quote in "`'" and len(token) > 1 else token


def _atomic_type(text: TypeText, synonym_of: Mapping[str, str]) -> DataType:
    word = text.peek()
    root = synonym_of.get(word, word)
    if root not in (*PARAMETERS_OF, "STRING", "BYTES"):
        raise text.error(f"unsupported type {word or 'nothing'}")
    text.take()
    if root == "DOUBLE":
        text.accept("PRECISION")
    made = _with_parameters(text, root)
    return made.with_nullable(nullability(text))


def _with_parameters(text: TypeText, root: str) -> AtomicType:
    # Omitted parameters have the format's defaults: DECIMAL(10, 0), CHAR(1), TIME(0), TIMESTAMP(6).
    if root in ("STRING", "BYTES"):
        return STRING if root == "STRING" else BYTES
    if root == "DECIMAL":
        precision, *scale = _numbers(text, at_most=2) or [10]
        return AtomicType(root, precision=precision, scale=scale[0] if scale else 0)
    if root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        return AtomicType(root, length=(_numbers(text, at_most=1) or [1])[0])
    if root == "TIME":
        precision = (_numbers(text, at_most=1) or [0])[0]
        text.accept("WITHOUT", "TIME", "ZONE")
        return AtomicType(root, precision=precision)
    if root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return _timestamp(text, root)
    if root in ("GEOMETRY", "GEOGRAPHY"):
        default = "OGC:CRS84" if root == "GEOMETRY" else "OGC:CRS84, SPHERICAL"
        return AtomicType(root, crs=_raw_parameters(text) or default)
    return AtomicType(root)


def _timestamp(text: TypeText, root: str) -> AtomicType:
    precision = (_numbers(text, at_most=1) or [6])[0]
    if root == "TIMESTAMP" and text.accept("WITH"):
        text.expect("LOCAL", "TIME", "ZONE")
        return AtomicType("TIMESTAMP_LTZ", precision=precision)
    text.accept("WITHOUT", "TIME", "ZONE")
    return AtomicType(root, precision=precision)


def _numbers(text: TypeText, *, at_most: int) -> list[int]:
    if not text.accept("("):
        return []
    numbers = [text.take_int()]
    while len(numbers) < at_most and text.accept(","):
        numbers.append(text.take_int())
    text.expect(")")
    return numbers


def _raw_parameters(text: TypeText) -> str:
    if not text.accept("("):
        return ""
    parts = []
    while not text.accept(")"):
        token = _unquoted(text.take())
        parts.append(", " if token == "," else token)
    return "".join(parts)
