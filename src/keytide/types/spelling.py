"""Spellings of column types: in SQL, in schema files, and in Arrow.

In a schema file, scalar types are strings, and nested ones are JSON objects.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

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

# -- scalar types, and types in SQL ----------------------------------------------------------------


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
        text.take()
        text.expect("<")
        key = _sql_type(text)
        text.expect(",")
        value = _sql_type(text)
        text.expect(">")
        return MapType(key, value, nullability(text))
    if root == "ROW":
        return _row(text)
    if root == "VECTOR":
        return _vector(text, _sql_type)
    return _atomic_type(text, {**_SYNONYM_OF, **_SQL_SYNONYM_OF})


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

        name = _unquoted(text.take())
        text.accept(":")
        type_ = _sql_type(text)
        text.accept("COMMENT")
        description = _unquoted(text.take()) if text.peek().startswith("'") else None
        default = text.take() if text.accept("DEFAULT") else None
        fields.append(Field(-1, name, type_, description, default))
    return RowType(tuple(fields), nullability(text))


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

    # Omitted parameters have the format's defaults: DECIMAL(10, 0), CHAR(1), TIME(0), TIMESTAMP(6).
    if root in ("STRING", "BYTES"):
        made = STRING if root == "STRING" else BYTES
    elif root == "DECIMAL":
        precision, *scale = _numbers(text, at_most=2) or [10]
        made = AtomicType(root, precision=precision, scale=scale[0] if scale else 0)
    elif root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        made = AtomicType(root, length=(_numbers(text, at_most=1) or [1])[0])
    elif root == "TIME":
        precision = (_numbers(text, at_most=1) or [0])[0]
        text.accept("WITHOUT", "TIME", "ZONE")
        made = AtomicType(root, precision=precision)
    elif root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        made = _timestamp(text, root)
    elif root in ("GEOMETRY", "GEOGRAPHY"):
        default = "OGC:CRS84" if root == "GEOMETRY" else "OGC:CRS84, SPHERICAL"
        made = AtomicType(root, crs=_raw_parameters(text) or default)
    else:
        made = AtomicType(root)
    return made.with_nullable(nullability(text))


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


# -- types and fields of a schema file -------------------------------------------------------------


def parse_type(value: str | Mapping[str, Any]) -> DataType:
    """Parse the ``type`` member of a schema file.

    ROW fields without ids are numbered from 0 in reading order. Raises InvalidError, quoting the
    text, for anything that is not valid in a schema file.
    """
    return _type_from_json(value, itertools.count())


def parse_field(value: Mapping[str, Any]) -> Field:
    """Parse an entry of a schema file's ``fields``. Unknown members are ignored.

    Raises InvalidError, naming the member, for anything that is not valid in a schema file.
    """
    return _field_from_json(value, itertools.count())


def _type_from_json(value: Any, ids: Iterator[int]) -> DataType:
    if isinstance(value, str):
        return _whole(TypeText(value), _stored_type)
    if not isinstance(value, Mapping):
        raise InvalidError(f"A type must be a string or a JSON object, found {value!r}")
    head = TypeText(str(_member(value, "type")))
    root = head.take().upper()
    nullable = nullability(head)
    head.expect_end()
    if root in ("ARRAY", "MULTISET"):
        element = _type_from_json(_member(value, "element"), ids)
        return ArrayType(element, nullable) if root == "ARRAY" else MultisetType(element, nullable)
    if root == "MAP":
        key = _type_from_json(_member(value, "key"), ids)
        return MapType(key, _type_from_json(_member(value, "value"), ids), nullable)
    if root == "ROW":
        members = _member(value, "fields")
        if not isinstance(members, Sequence) or isinstance(members, str):
            raise InvalidError(f"The fields of a ROW must be a list, found {members!r}")
        return RowType(tuple(_field_from_json(m, ids) for m in members), nullable)
    if root == "VECTOR":
        element = _type_from_json(_member(value, "element"), ids)
        return VectorType(element, _integer_member(value, "length"), nullable)
    raise head.error(
        f"{root} is not a nested type; supported are ARRAY, MAP, MULTISET, ROW, VECTOR"
    )


def _field_from_json(value: Any, ids: Iterator[int]) -> Field:
    if not isinstance(value, Mapping):
        raise InvalidError(f"A field must be a JSON object, found {value!r}")
    number = _integer_member(value, "id") if "id" in value else next(ids)
    name = _member(value, "name")
    type_ = _type_from_json(_member(value, "type"), ids)
    description, default = value.get("description"), value.get("defaultValue")
    if not isinstance(name, str):
        raise InvalidError(f"The name of a field must be a string, found {name!r}")
    for text in (description, default):
        if not isinstance(text, str | None):
            raise InvalidError(
                f"Description and default of field {name!r} must be strings, found {text!r}"
            )
    return Field(number, name, type_, description, default)


def _integer_member(value: Mapping[str, Any], name: str) -> int:
    number = _member(value, name)
    if not isinstance(number, int) or isinstance(number, bool) or not -1 <= number < 2**31:
        raise InvalidError(f"Member {name!r} should be an integer of 32 bits, found {number!r}")
    return number


def _member(value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        raise InvalidError(f"Member {name!r} is missing in {dict(value)!r}")
    return value[name]


# -- Arrow types -----------------------------------------------------------------------------------


def type_from_arrow(arrow_type: pa.DataType, nullable: bool = True) -> DataType:
    """The narrowest logical type that holds every value of an Arrow type.

    Unsigned integers are widened (uint64 to DECIMAL(20, 0)). Large types, view types and
    dictionaries become the plain type. Any time zone gives the timestamp type with local time zone.
    Field ids are -1. Raises InvalidError for null, interval and duration columns and for times
    finer than milliseconds. The message names the cast to use.
    """
    if isinstance(arrow_type, pa.BaseExtensionType):
        return type_from_arrow(arrow_type.storage_type, nullable)
    if pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
        return type_from_arrow(arrow_type.value_type, nullable)
    for matches, convert in _FROM_ARROW:
        if matches(arrow_type):
            return convert(arrow_type).with_nullable(nullable)
    raise InvalidError(
        f"Arrow type {arrow_type} has no table type: "
        f"{_WAY_OUT.get(arrow_type.id, 'cast the column to a supported type first')}"
    )


def _atomic(root: str, **parameters: Any) -> Callable[[pa.DataType], DataType]:
    made = AtomicType(root, **parameters)
    return lambda _: made


def _timestamp_from_arrow(arrow_type: pa.DataType) -> DataType:
    precision = {"s": 0, "ms": 3, "us": 6, "ns": 9}[arrow_type.unit]
    return AtomicType("TIMESTAMP" if arrow_type.tz is None else "TIMESTAMP_LTZ", None, precision)


def _map_from_arrow(arrow_type: pa.DataType) -> DataType:
    value = arrow_type.item_field
    # Arrow keys are never NULL. The plain key type is the one that DDL writes.
    return MapType(
        type_from_arrow(arrow_type.key_type), type_from_arrow(value.type, value.nullable)
    )


def _array_from_arrow(arrow_type: pa.DataType) -> DataType:
    element = arrow_type.value_field
    return ArrayType(type_from_arrow(element.type, element.nullable))


def _row_from_arrow(arrow_type: pa.DataType) -> DataType:
    members = (arrow_type.field(i) for i in range(arrow_type.num_fields))
    return RowType(tuple(Field(-1, m.name, type_from_arrow(m.type, m.nullable)) for m in members))


_FROM_ARROW: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], DataType]]] = (
    (pa.types.is_boolean, _atomic("BOOLEAN")),
    (pa.types.is_int8, _atomic("TINYINT")),
    (pa.types.is_int16, _atomic("SMALLINT")),
    (pa.types.is_int32, _atomic("INT")),
    (pa.types.is_int64, _atomic("BIGINT")),
    (pa.types.is_uint8, _atomic("SMALLINT")),
    (pa.types.is_uint16, _atomic("INT")),
    (pa.types.is_uint32, _atomic("BIGINT")),
    (pa.types.is_uint64, _atomic("DECIMAL", precision=20, scale=0)),
    (pa.types.is_float16, _atomic("FLOAT")),
    (pa.types.is_float32, _atomic("FLOAT")),
    (pa.types.is_float64, _atomic("DOUBLE")),
    (pa.types.is_decimal, lambda t: AtomicType("DECIMAL", precision=t.precision, scale=t.scale)),
    (pa.types.is_string, lambda _: STRING),
    (pa.types.is_large_string, lambda _: STRING),
    (pa.types.is_string_view, lambda _: STRING),
    (pa.types.is_binary, lambda _: BYTES),
    (pa.types.is_large_binary, lambda _: BYTES),
    (pa.types.is_binary_view, lambda _: BYTES),
    (pa.types.is_fixed_size_binary, lambda t: AtomicType("BINARY", length=t.byte_width)),
    (pa.types.is_date, _atomic("DATE")),
    # TIME is stored in milliseconds. Finer times are refused.
    (pa.types.is_time32, lambda t: AtomicType("TIME", precision=0 if t.unit == "s" else 3)),
    (pa.types.is_timestamp, _timestamp_from_arrow),
    (pa.types.is_map, _map_from_arrow),
    (pa.types.is_list, _array_from_arrow),
    (pa.types.is_large_list, _array_from_arrow),
    (pa.types.is_list_view, _array_from_arrow),
    (pa.types.is_large_list_view, _array_from_arrow),
    (pa.types.is_fixed_size_list, _array_from_arrow),
    (pa.types.is_struct, _row_from_arrow),
)

_WAY_OUT: Mapping[int, str] = {
    pa.null().id: "the column contains only NULLs; cast it to the intended type",
    pa.time64("us").id: "TIME has milliseconds; cast the column to pa.time32('ms') first",
    pa.duration("us").id: "cast the duration to int64 and put its unit into the column name",
    pa.month_day_nano_interval().id: "split the interval into integer columns first",
}
