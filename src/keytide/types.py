"""The vocabulary of values: logical types, fields, and their three spellings.

A type is written as stored text (the exact text of a Paimon schema file), as SQL, and as an
Arrow type. Stored text and SQL differ for nested types only: a schema file holds them as JSON
objects and rejects ``ARRAY<INT>``.

Several logical types share one Arrow type, so ``type_from_arrow(t.to_arrow())`` gives the widest
of them: CHAR and VARCHAR come back as STRING, BINARY, VARBINARY and BLOB as BYTES, MULTISET as
MAP, VECTOR as ARRAY, VARIANT as ROW. The other direction loses nothing: every Arrow type made
by :meth:`DataType.to_arrow` survives the way through a logical type and back.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import pyarrow as pa

from keytide.arguments import checked, checked_members
from keytide.errors import InvalidError

__all__ = [
    "BYTES",
    "LENGTH_MAX",
    "STRING",
    "ArrayType",
    "AtomicType",
    "DataType",
    "Field",
    "MapType",
    "MultisetType",
    "RowType",
    "VectorType",
    "arrow_schema",
    "parse_field",
    "parse_sql_type",
    "parse_type",
    "quoted",
    "type_from_arrow",
]

LENGTH_MAX = 2147483647
"""The length of STRING and BYTES."""

DECIMAL_PRECISION_MAX = 38


_AnyType = TypeVar("_AnyType", bound="DataType")


class DataType(ABC):
    """A logical column type. Immutable; two types are equal when their stored text is."""

    root: str
    nullable: bool

    @abstractmethod
    def to_json(self) -> str | dict[str, Any]:
        """The stored form: text for scalar types, a JSON object for nested ones."""

    @abstractmethod
    def sql(self) -> str:
        """The type as SQL text, which :func:`parse_sql_type` reads back."""

    @abstractmethod
    def to_arrow(self) -> pa.DataType:
        """The Arrow type of a column of this type (nullability belongs to the Arrow field)."""

    def with_nullable(self: _AnyType, nullable: bool) -> _AnyType:
        """The same type with the given nullability."""
        made: _AnyType = replace(cast(Any, self), nullable=nullable)
        return made

    @property
    def is_nested(self) -> bool:
        """Whether values have parts, so that they cannot be keys, partitions or statistics."""
        return True

    def _suffix(self) -> str:
        return "" if self.nullable else " NOT NULL"


@checked_members
@dataclass(frozen=True)
class AtomicType(DataType):
    """A type without element types.

    ``length`` belongs to CHAR, VARCHAR, BINARY and VARBINARY; ``precision`` to DECIMAL, TIME and
    timestamps; ``scale`` to DECIMAL; ``crs`` (with the edge algorithm, if any) to GEOMETRY and
    GEOGRAPHY. Raises InvalidError when a parameter is missing, foreign or out of range.
    """

    root: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    crs: str | None = None
    nullable: bool = True

    def __post_init__(self) -> None:
        if self.root not in _PARAMETERS_OF:
            raise InvalidError(f"Unknown type {self.root!r}; known are {', '.join(_PARAMETERS_OF)}")
        for name in ("length", "precision", "scale", "crs"):
            given = getattr(self, name) is not None
            if given != (name in _PARAMETERS_OF[self.root]):
                word = "takes no" if given else "needs a"
                raise InvalidError(f"Type {self.root} {word} {name}")
        self._check_ranges()

    def to_json(self) -> str:
        """The stored text, for example ``DECIMAL(10, 2) NOT NULL``."""
        return self.sql()

    def sql(self) -> str:
        """The same text as :meth:`to_json`."""
        return self._name() + self._suffix()

    def to_arrow(self) -> pa.DataType:
        """The Arrow type; timestamps take the coarsest unit that holds their precision."""
        if self.root in _ARROW_OF:
            return _ARROW_OF[self.root]
        if self.root == "DECIMAL":
            return pa.decimal128(self.precision, self.scale)
        zone = "UTC" if self.root == "TIMESTAMP_LTZ" else None
        return pa.timestamp(_timestamp_unit(self.precision or 0), tz=zone)

    @property
    def is_nested(self) -> bool:
        """True for VARIANT, BLOB, GEOMETRY and GEOGRAPHY, whose values have inner structure."""
        return self.root in ("VARIANT", "BLOB", "GEOMETRY", "GEOGRAPHY")

    def _name(self) -> str:
        if self.length == LENGTH_MAX and self.root in ("VARCHAR", "VARBINARY"):
            return "STRING" if self.root == "VARCHAR" else "BYTES"
        if self.root == "TIMESTAMP_LTZ":
            return f"TIMESTAMP({self.precision}) WITH LOCAL TIME ZONE"
        parameters = [getattr(self, name) for name in _PARAMETERS_OF[self.root]]
        return f"{self.root}({', '.join(map(str, parameters))})" if parameters else self.root

    def _check_ranges(self) -> None:
        if self.length is not None:
            self._check("length", self.length, 1, LENGTH_MAX)
        if self.root == "DECIMAL":
            self._check("precision", self.precision, 1, DECIMAL_PRECISION_MAX)
            self._check("scale", self.scale, 0, self.precision)
        elif self.precision is not None:
            self._check("precision", self.precision, 0, 9)

    def _check(self, name: str, value: Any, low: int, high: Any) -> None:
        if not low <= value <= high:
            raise InvalidError(
                f"The {name} of {self.root} must be between {low} and {high}, found {value}"
            )


_PARAMETERS_OF: Mapping[str, tuple[str, ...]] = {
    "BOOLEAN": (),
    "TINYINT": (),
    "SMALLINT": (),
    "INT": (),
    "BIGINT": (),
    "FLOAT": (),
    "DOUBLE": (),
    "DECIMAL": ("precision", "scale"),
    "CHAR": ("length",),
    "VARCHAR": ("length",),
    "BINARY": ("length",),
    "VARBINARY": ("length",),
    "DATE": (),
    "TIME": ("precision",),
    "TIMESTAMP": ("precision",),
    "TIMESTAMP_LTZ": ("precision",),
    "VARIANT": (),
    "BLOB": (),
    "GEOMETRY": ("crs",),
    "GEOGRAPHY": ("crs",),
}

_ARROW_OF: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "CHAR": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time32("ms"),
    "VARIANT": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False),
        ]
    ),
    "BLOB": pa.large_binary(),
    "GEOMETRY": pa.binary(),
    "GEOGRAPHY": pa.binary(),
}

STRING = AtomicType("VARCHAR", length=LENGTH_MAX)
"""Text of any length: VARCHAR(2147483647)."""

BYTES = AtomicType("VARBINARY", length=LENGTH_MAX)
"""Bytes of any length: VARBINARY(2147483647)."""


@checked_members
@dataclass(frozen=True)
class ArrayType(DataType):
    """A list of elements."""

    root: str = field(default="ARRAY", init=False, repr=False)
    element: DataType
    nullable: bool = True

    def to_json(self) -> dict[str, Any]:
        """The stored JSON object."""
        return {"type": self.root + self._suffix(), "element": self.element.to_json()}

    def sql(self) -> str:
        """``ARRAY<element>``."""
        return f"ARRAY<{self.element.sql()}>{self._suffix()}"

    def to_arrow(self) -> pa.DataType:
        """An Arrow list."""
        return pa.list_(pa.field("element", self.element.to_arrow(), self.element.nullable))


@checked_members
@dataclass(frozen=True)
class MapType(DataType):
    """Keys and values. Arrow never allows a null key, whatever the key type says."""

    root: str = field(default="MAP", init=False, repr=False)
    key: DataType
    value: DataType
    nullable: bool = True

    def to_json(self) -> dict[str, Any]:
        """The stored JSON object."""
        members = {"key": self.key.to_json(), "value": self.value.to_json()}
        return {"type": self.root + self._suffix(), **members}

    def sql(self) -> str:
        """``MAP<key, value>``."""
        return f"MAP<{self.key.sql()}, {self.value.sql()}>{self._suffix()}"

    def to_arrow(self) -> pa.DataType:
        """An Arrow map."""
        value = pa.field("value", self.value.to_arrow(), self.value.nullable)
        return pa.map_(self.key.to_arrow(), value)


@checked_members
@dataclass(frozen=True)
class MultisetType(DataType):
    """Elements with a count each."""

    root: str = field(default="MULTISET", init=False, repr=False)
    element: DataType
    nullable: bool = True

    def to_json(self) -> dict[str, Any]:
        """The stored JSON object."""
        return {"type": self.root + self._suffix(), "element": self.element.to_json()}

    def sql(self) -> str:
        """``MULTISET<element>``."""
        return f"MULTISET<{self.element.sql()}>{self._suffix()}"

    def to_arrow(self) -> pa.DataType:
        """An Arrow map from element to its count."""
        return pa.map_(self.element.to_arrow(), pa.int32())


@checked_members
@dataclass(frozen=True)
class RowType(DataType):
    """Named members, each a field with an id of its own."""

    root: str = field(default="ROW", init=False, repr=False)
    fields: tuple[Field, ...]
    nullable: bool = True

    def to_json(self) -> dict[str, Any]:
        """The stored JSON object."""
        return {"type": self.root + self._suffix(), "fields": [f.to_json() for f in self.fields]}

    def sql(self) -> str:
        """``ROW<name type, ...>``."""
        return f"ROW<{', '.join(f.sql() for f in self.fields)}>{self._suffix()}"

    def to_arrow(self) -> pa.DataType:
        """An Arrow struct."""
        return pa.struct([f.to_arrow() for f in self.fields])


@checked_members
@dataclass(frozen=True)
class VectorType(DataType):
    """A list of exactly ``length`` elements."""

    root: str = field(default="VECTOR", init=False, repr=False)
    element: DataType
    length: int
    nullable: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidError(f"The length of VECTOR must be at least 1, found {self.length}")

    def to_json(self) -> dict[str, Any]:
        """The stored JSON object."""
        members = {"element": self.element.to_json(), "length": self.length}
        return {"type": self.root + self._suffix(), **members}

    def sql(self) -> str:
        """``VECTOR<element, length>``."""
        return f"VECTOR<{self.element.sql()}, {self.length}>{self._suffix()}"

    def to_arrow(self) -> pa.DataType:
        """An Arrow fixed-size list."""
        element = pa.field("element", self.element.to_arrow(), self.element.nullable)
        return pa.list_(element, self.length)


@checked_members
@dataclass(frozen=True)
class Field:
    """A column, or a member of a ROW. Its ``id`` outlives renames; -1 means not yet assigned."""

    id: int
    name: str
    type: DataType
    description: str | None = None
    default_value: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The stored JSON object; members without a value are left out."""
        members = {"id": self.id, "name": self.name, "type": self.type.to_json()}
        if self.description is not None:
            members["description"] = self.description
        if self.default_value is not None:
            members["defaultValue"] = self.default_value
        return members

    def sql(self) -> str:
        """The field as it stands in DDL: name, type, comment, default."""
        text = f"{quoted(self.name)} {self.type.sql()}"
        if self.description is not None:
            escaped = self.description.replace("'", "''")
            text += f" COMMENT '{escaped}'"
        if self.default_value is not None:
            text += f" DEFAULT {self.default_value}"
        return text

    def to_arrow(self) -> pa.Field:
        """The Arrow field, nullability kept, without metadata."""
        return pa.field(self.name, self.type.to_arrow(), self.type.nullable)


def quoted(name: str) -> str:
    """A name as SQL takes it literally."""
    return "`" + name.replace("`", "``") + "`"


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """The Arrow schema of some fields, nullability kept, without metadata."""
    return pa.schema([f.to_arrow() for f in fields])


def parse_type(value: str | Mapping[str, Any]) -> DataType:
    """The type of a schema file's ``type`` member.

    ROW members without ids are numbered from 0 in reading order.
    Raises InvalidError, naming the text, for anything a schema file may not hold.
    """
    return _type_from_json(value, itertools.count())


def parse_field(value: Mapping[str, Any]) -> Field:
    """The field of a schema file's ``fields`` entry. Unknown members are ignored."""
    return _field_from_json(value, itertools.count())


@checked
def parse_sql_type(text: str) -> DataType:
    """The type of a column in SQL text: Flink's names, and Spark's where they do not clash.

    Nested types take their SQL spelling (``ARRAY<INT>``, ``ROW<a INT, b STRING NOT NULL>``,
    ``STRUCT<a: INT>``). TIMESTAMP is without a time zone. Field ids are -1.
    Raises InvalidError, naming the text and the place.
    """
    return _whole(_TypeText(text), _sql_type)


def type_from_arrow(arrow_type: pa.DataType, nullable: bool = True) -> DataType:
    """The narrowest logical type that holds every value of an Arrow type.

    Unsigned integers widen (uint64 to DECIMAL(20, 0)), large and view types and dictionaries
    become their plain type, any time zone gives the local-zoned timestamp. Field ids are -1.
    Raises InvalidError for null, interval and duration columns and for times finer than
    milliseconds, with the cast to make first.
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


# --- Arrow -------------------------------------------------------------------------------------


def _timestamp_unit(precision: int) -> str:
    return "ms" if precision <= 3 else "us" if precision <= 6 else "ns"


def _atomic(root: str, **parameters: Any) -> Callable[[pa.DataType], DataType]:
    made = AtomicType(root, **parameters)
    return lambda _: made


def _decimal_from_arrow(arrow_type: pa.DataType) -> DataType:
    return AtomicType("DECIMAL", precision=arrow_type.precision, scale=arrow_type.scale)


def _binary_from_arrow(arrow_type: pa.DataType) -> DataType:
    return AtomicType("BINARY", length=arrow_type.byte_width)


def _time_from_arrow(arrow_type: pa.DataType) -> DataType:
    return AtomicType("TIME", precision=0 if arrow_type.unit == "s" else 3)


def _timestamp_from_arrow(arrow_type: pa.DataType) -> DataType:
    precision = {"s": 0, "ms": 3, "us": 6, "ns": 9}[arrow_type.unit]
    return AtomicType("TIMESTAMP" if arrow_type.tz is None else "TIMESTAMP_LTZ", None, precision)


def _map_from_arrow(arrow_type: pa.DataType) -> DataType:
    value = arrow_type.item_field
    # Keys are never null in Arrow; the plain key type is what DDL writes.
    return MapType(
        type_from_arrow(arrow_type.key_type), type_from_arrow(value.type, value.nullable)
    )


def _array_from_arrow(arrow_type: pa.DataType) -> DataType:
    element = arrow_type.value_field
    return ArrayType(type_from_arrow(element.type, element.nullable))


def _row_from_arrow(arrow_type: pa.DataType) -> DataType:
    members = (arrow_type.field(i) for i in range(arrow_type.num_fields))
    return RowType(tuple(Field(-1, m.name, type_from_arrow(m.type, m.nullable)) for m in members))


def _is_text(arrow_type: pa.DataType) -> bool:
    is_text = pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)
    return bool(is_text or pa.types.is_string_view(arrow_type))


def _is_bytes(arrow_type: pa.DataType) -> bool:
    is_bytes = pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type)
    return bool(is_bytes or pa.types.is_binary_view(arrow_type))


def _is_list(arrow_type: pa.DataType) -> bool:
    is_list = pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
    is_view = pa.types.is_list_view(arrow_type) or pa.types.is_large_list_view(arrow_type)
    return bool(is_list or is_view or pa.types.is_fixed_size_list(arrow_type))


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
    (pa.types.is_decimal, _decimal_from_arrow),
    (_is_text, _atomic("VARCHAR", length=LENGTH_MAX)),
    (_is_bytes, _atomic("VARBINARY", length=LENGTH_MAX)),
    (pa.types.is_fixed_size_binary, _binary_from_arrow),
    (pa.types.is_date, _atomic("DATE")),
    (pa.types.is_time32, _time_from_arrow),
    (pa.types.is_timestamp, _timestamp_from_arrow),
    (pa.types.is_map, _map_from_arrow),
    (_is_list, _array_from_arrow),
    (pa.types.is_struct, _row_from_arrow),
)

_WAY_OUT: Mapping[int, str] = {
    pa.null().id: "the column holds nothing but nulls; cast it to the type it should have",
    pa.time64("us").id: "TIME keeps milliseconds; cast the column to pa.time32('ms') first",
    pa.duration("us").id: "cast the duration to int64 and name its unit in the column",
    pa.month_day_nano_interval().id: "split the interval into integer columns first",
}


# --- JSON --------------------------------------------------------------------------------------


def _type_from_json(value: Any, ids: Iterator[int]) -> DataType:
    if isinstance(value, str):
        return _whole(_TypeText(value), _stored_type)
    if not isinstance(value, Mapping):
        raise InvalidError(f"A type must be text or a JSON object, found {value!r}")
    head = _TypeText(str(_member(value, "type")))
    root = head.take().upper()
    nullable = _nullability(head)
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
            raise InvalidError(f"The fields of a ROW are a list, found {members!r}")
        return RowType(tuple(_field_from_json(m, ids) for m in members), nullable)
    if root == "VECTOR":
        element = _type_from_json(_member(value, "element"), ids)
        return VectorType(element, _integer_member(value, "length"), nullable)
    raise head.error(f"{root} is no nested type; known are ARRAY, MAP, MULTISET, ROW, VECTOR")


def _field_from_json(value: Any, ids: Iterator[int]) -> Field:
    if not isinstance(value, Mapping):
        raise InvalidError(f"A field must be a JSON object, found {value!r}")
    number = _integer_member(value, "id") if "id" in value else next(ids)
    name = _member(value, "name")
    kind = _type_from_json(_member(value, "type"), ids)
    description, default = value.get("description"), value.get("defaultValue")
    if not isinstance(name, str):
        raise InvalidError(f"The name of a field is a text, found {name!r}")
    for text in (description, default):
        if not isinstance(text, str | None):
            raise InvalidError(
                f"Description and default of field {name!r} are texts, found {text!r}"
            )
    return Field(number, name, kind, description, default)


def _integer_member(value: Mapping[str, Any], name: str) -> int:
    number = _member(value, name)
    if not isinstance(number, int) or isinstance(number, bool) or not -1 <= number < 2**31:
        raise InvalidError(f"Member {name!r} should be an integer of 32 bits, found {number!r}")
    return number


def _member(value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        raise InvalidError(f"Member {name!r} is missing in {dict(value)!r}")
    return value[name]


# --- text --------------------------------------------------------------------------------------

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


class _TypeText:
    """A cursor over the tokens of one type text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matches = list(_TOKEN.finditer(text))
        self.place = 0

    def peek(self) -> str:
        at_end = self.place >= len(self.matches)
        return "" if at_end else self.matches[self.place].group(1).upper()

    def take(self) -> str:
        if self.place >= len(self.matches):
            raise self.error("unexpected end")
        self.place += 1
        return self.matches[self.place - 1].group(1)

    def accept(self, *words: str) -> bool:
        ahead = [m.group(1).upper() for m in self.matches[self.place : self.place + len(words)]]
        if ahead != list(words):
            return False
        self.place += len(words)
        return True

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            raise self.error(f"expected {' '.join(words)!r}, found {self.peek() or 'the end'!r}")

    def expect_end(self) -> None:
        if self.place < len(self.matches):
            raise self.error(f"unexpected {self.peek()!r}")

    def take_int(self) -> int:
        token = self.take()
        if not token.isdecimal():
            self.place -= 1
            raise self.error(f"expected a number, found {token!r}")
        return int(token)

    def error(self, cause: str) -> InvalidError:
        here = self.matches[self.place].start(1) if self.place < len(self.matches) else None
        where = "at the end" if here is None else f"at position {here}"
        return InvalidError(f"Could not parse type {self.text!r} {where}: {cause}")


def _whole(text: _TypeText, parse: Callable[[_TypeText], DataType]) -> DataType:
    parsed = parse(text)
    text.expect_end()
    return parsed


def _nullability(text: _TypeText) -> bool:
    if text.accept("NOT", "NULL"):
        return False
    text.accept("NULL")
    return True


def _stored_type(text: _TypeText) -> DataType:
    root = text.peek()
    if root in ("ARRAY", "MAP", "MULTISET", "ROW"):
        raise text.error(f"unsupported type {root}: a schema stores nested types as JSON objects")
    if root == "VECTOR":
        return _vector(text, _stored_type)
    return _atomic_type(text, _SYNONYM_OF)


def _sql_type(text: _TypeText) -> DataType:
    root = _SQL_SYNONYM_OF.get(text.peek(), text.peek())
    if root in ("ARRAY", "MULTISET"):
        text.take()
        text.expect("<")
        element = _sql_type(text)
        text.expect(">")
        made = ArrayType(element) if root == "ARRAY" else MultisetType(element)
        return made.with_nullable(_nullability(text))
    if root == "MAP":
        return _map(text)
    if root == "ROW":
        return _row(text)
    if root == "VECTOR":
        return _vector(text, _sql_type)
    return _atomic_type(text, {**_SYNONYM_OF, **_SQL_SYNONYM_OF})


def _map(text: _TypeText) -> DataType:
    text.take()
    text.expect("<")
    key = _sql_type(text)
    text.expect(",")
    value = _sql_type(text)
    text.expect(">")
    return MapType(key, value, _nullability(text))


def _vector(text: _TypeText, parse_element: Callable[[_TypeText], DataType]) -> DataType:
    text.take()
    text.expect("<")
    element = parse_element(text)
    text.expect(",")
    length = text.take_int()
    text.expect(">")
    return VectorType(element, length, _nullability(text))


def _row(text: _TypeText) -> DataType:
    text.take()
    close = ">" if text.accept("<") else ")"
    if close == ")":
        text.expect("(")
    fields: list[Field] = []
    while not text.accept(close):
        if fields:
            text.expect(",")
        fields.append(_sql_field(text))
    return RowType(tuple(fields), _nullability(text))


def _sql_field(text: _TypeText) -> Field:
    name = _unquoted(text.take())
    text.accept(":")
    kind = _sql_type(text)
    text.accept("COMMENT")
    description = _unquoted(text.take()) if text.peek().startswith("'") else None
    default = text.take() if text.accept("DEFAULT") else None
    return Field(-1, name, kind, description, default)


def _unquoted(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote) if quote in "`'" and len(token) > 1 else token


def _atomic_type(text: _TypeText, synonym_of: Mapping[str, str]) -> DataType:
    word = text.peek()
    root = synonym_of.get(word, word)
    if root not in (*_PARAMETERS_OF, "STRING", "BYTES"):
        raise text.error(f"unsupported type {word or 'nothing'}")
    text.take()
    if root == "DOUBLE":
        text.accept("PRECISION")
    made = _with_parameters(text, root)
    return made.with_nullable(_nullability(text))


def _with_parameters(text: _TypeText, root: str) -> AtomicType:
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


def _timestamp(text: _TypeText, root: str) -> AtomicType:
    precision = (_numbers(text, at_most=1) or [6])[0]
    if root == "TIMESTAMP" and text.accept("WITH"):
        text.expect("LOCAL", "TIME", "ZONE")
        return AtomicType("TIMESTAMP_LTZ", precision=precision)
    text.accept("WITHOUT", "TIME", "ZONE")
    return AtomicType(root, precision=precision)


def _numbers(text: _TypeText, *, at_most: int) -> list[int]:
    if not text.accept("("):
        return []
    numbers = [text.take_int()]
    while len(numbers) < at_most and text.accept(","):
        numbers.append(text.take_int())
    text.expect(")")
    return numbers


def _raw_parameters(text: _TypeText) -> str:
    if not text.accept("("):
        return ""
    parts = []
    while not text.accept(")"):
        token = _unquoted(text.take())
        parts.append(", " if token == "," else token)
    return "".join(parts)
