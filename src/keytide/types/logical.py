"""Logical types of columns and their three forms, and the changes of a type that keep every value.

Widening also keeps the order of values, so bounds of the old type are valid for the new one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import pyarrow as pa

from keytide.base.arguments import checked_members
from keytide.base.dataclass import dataclass, field, replace
from keytide.errors import InvalidError

# -- types and fields ------------------------------------------------------------------------------


LENGTH_MAX = 2147483647
"""The length of STRING and BYTES."""

DECIMAL_PRECISION_MAX = 38


_AnyType = TypeVar("_AnyType", bound="DataType")


class DataType(ABC):
    """A logical column type. Immutable. Two types are equal if their stored text is equal."""

    root: str
    nullable: bool

    @abstractmethod
    def to_json(self) -> str | dict[str, Any]:
        """The stored form: a string for scalar types, and a JSON object for nested ones."""

    @abstractmethod
    def sql(self) -> str:
        """The type as SQL text, which :func:`keytide.types.parse_sql_type` reads back."""

    @abstractmethod
    def to_arrow(self) -> pa.DataType:
        """The Arrow type of a column of this type. Nullability is part of the Arrow field."""

    def with_nullable(self: _AnyType, nullable: bool) -> _AnyType:
        """The same type with the given nullability."""
        if nullable == self.nullable:
            return self
        made: _AnyType = replace(cast(Any, self), nullable=nullable)
        return made

    @property
    def is_nested(self) -> bool:
        """Whether values have parts, which excludes keys, partitions and statistics."""
        return True

    def _suffix(self) -> str:
        return "" if self.nullable else " NOT NULL"


@checked_members
@dataclass(frozen=True)
class AtomicType(DataType):
    """A type without element types.

    ``length`` is for CHAR, VARCHAR, BINARY and VARBINARY, ``precision`` for DECIMAL, TIME and
    timestamps, ``scale`` for DECIMAL, and ``crs`` (with the edge algorithm, if any) for GEOMETRY
    and GEOGRAPHY. Raises InvalidError if a parameter is missing, not supported or out of range.
    """

    root: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    crs: str | None = None
    nullable: bool = True

    def __post_init__(self) -> None:
        if self.root not in PARAMETERS_OF:
            raise InvalidError(
                f"Unknown type {self.root!r}; supported types: {', '.join(PARAMETERS_OF)}"
            )
        for name in ("length", "precision", "scale", "crs"):
            given = getattr(self, name) is not None
            if given != (name in PARAMETERS_OF[self.root]):
                word = "takes no" if given else "needs a"
                raise InvalidError(f"Type {self.root} {word} {name}")

        if self.length is not None:
            self._check("length", self.length, 1, LENGTH_MAX)
        if self.root == "DECIMAL":
            self._check("precision", self.precision, 1, DECIMAL_PRECISION_MAX)
            self._check("scale", self.scale, 0, self.precision)
        elif self.precision is not None:
            self._check("precision", self.precision, 0, 9)

    def to_json(self) -> str:
        """The stored text, for example ``DECIMAL(10, 2) NOT NULL``."""
        return self.sql()

    def sql(self) -> str:
        """The same text as :meth:`to_json`."""
        if self.length == LENGTH_MAX and self.root in ("VARCHAR", "VARBINARY"):
            name = "STRING" if self.root == "VARCHAR" else "BYTES"
        elif self.root == "TIMESTAMP_LTZ":
            name = f"TIMESTAMP({self.precision}) WITH LOCAL TIME ZONE"
        else:
            parameters = [str(getattr(self, each)) for each in PARAMETERS_OF[self.root]]
            name = f"{self.root}({', '.join(parameters)})" if parameters else self.root
        return name + self._suffix()

    def to_arrow(self) -> pa.DataType:
        """The Arrow type. Timestamps use the coarsest unit that holds their precision."""
        if self.root in _ARROW_OF:
            return _ARROW_OF[self.root]
        if self.root == "DECIMAL":
            return pa.decimal128(self.precision, self.scale)
        # Any zone is correct: the values count from the epoch in UTC, and a zone only affects
        # display.
        zone = "UTC" if self.root == "TIMESTAMP_LTZ" else None
        precision = self.precision or 0
        timestamp_unit = "ms" if precision <= 3 else "us" if precision <= 6 else "ns"
        return pa.timestamp(timestamp_unit, tz=zone)

    @property
    def is_nested(self) -> bool:
        """True for VARIANT, BLOB, GEOMETRY and GEOGRAPHY, whose values have inner structure."""
        return self.root in ("VARIANT", "BLOB", "GEOMETRY", "GEOGRAPHY")

    def _check(self, name: str, value: Any, low: int, high: Any) -> None:
        if not low <= value <= high:
            raise InvalidError(
                f"The {name} of {self.root} must be between {low} and {high}, found {value}"
            )


PARAMETERS_OF: Mapping[str, tuple[str, ...]] = {
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
"""The parameters of each atomic type, in the order of its text."""

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
"""Strings of any length: VARCHAR(2147483647)."""

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
    """Keys and values. Arrow never allows a NULL key, whatever the key type says."""

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
    """Elements, each with a count."""

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
    """Named fields, each with an id of its own."""

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
    """A column, or a field of a ROW. Its ``id`` does not change in renames. -1 means not assigned
    yet.

    Raises InvalidError for an argument of another type.
    """

    id: int
    name: str
    type: DataType
    description: str | None = None
    default_value: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The stored JSON object. Members without a value are omitted."""
        members = {"id": self.id, "name": self.name, "type": self.type.to_json()}
        if self.description is not None:
            members["description"] = self.description
        if self.default_value is not None:
            members["defaultValue"] = self.default_value
        return members

    def sql(self) -> str:
        """The field in DDL syntax: name, type, comment, default."""
        text = f"{quoted(self.name)} {self.type.sql()}"
        if self.description is not None:
            escaped = self.description.replace("'", "''")
            text += f" COMMENT '{escaped}'"
        if self.default_value is not None:
            text += f" DEFAULT {self.default_value}"
        return text

    def to_arrow(self) -> pa.Field:
        """The Arrow field with its nullability, without metadata."""
        return pa.field(self.name, self.type.to_arrow(), self.type.nullable)


def quoted(name: str) -> str:
    """A name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """The Arrow schema of some fields with their nullability, without metadata."""
    return pa.schema([f.to_arrow() for f in fields])


# -- type changes ----------------------------------------------------------------------------------


def widened(old: DataType, new: DataType, path: tuple[str, ...]) -> DataType:
    """The new type with the ids and the nullability of the old one.

    Raises `InvalidError`, with `path` and the allowed types, unless every value fits.
    """
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return replace(old, element=widened(old.element, new.element, (*path, "element")))
    if isinstance(old, MapType) and isinstance(new, MapType) and _is_same(old.key, new.key):
        return replace(old, value=widened(old.value, new.value, (*path, "value")))
    if isinstance(old, RowType) and isinstance(new, RowType):
        names, wanted = [f.name for f in old.fields], [f.name for f in new.fields]
        if names != wanted:
            raise InvalidError(
                f"column {path_text(path)} has the fields {', '.join(names)}, found "
                f"{', '.join(wanted)}; add, drop, rename and move fields by their paths, such as "
                f"{path_text((*path, names[0]))}"
            )
        members = (
            replace(member, type=widened(member.type, wider.type, (*path, member.name)))
            for member, wider in zip(old.fields, new.fields, strict=True)
        )
        return replace(old, fields=tuple(members))
    if isinstance(old, AtomicType) and isinstance(new, AtomicType) and holds_all(old, new):
        return new.with_nullable(old.nullable)
    if _is_same(old, new):
        return old
    raise InvalidError(
        f"column {path_text(path)} is {old.sql()} and cannot become {new.sql()}: a type can only "
        f"be widened, so that it can hold every stored value exactly. {_wider_types(old)}. "
        "Otherwise add a column and write the values to it"
    )


def _is_same(old: DataType, new: DataType) -> bool:
    return old.with_nullable(True) == new.with_nullable(True)


_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
_EXACT_FLOATS = {
    "TINYINT": ("FLOAT", "DOUBLE"),
    "SMALLINT": ("FLOAT", "DOUBLE"),
    # A FLOAT holds integers of 24 bits exactly, and a DOUBLE of 53 bits. A BIGINT fits into
    # neither.
    "INT": ("DOUBLE",),
    "FLOAT": ("DOUBLE",),
}
_LONGER = {
    "CHAR": ("CHAR", "VARCHAR"),
    "VARCHAR": ("VARCHAR",),
    "BINARY": ("VARBINARY",),  # a longer BINARY would need padding
    "VARBINARY": ("VARBINARY",),
}
_MICROSECONDS = 6
_DECIMAL_DIGITS_MAX = 38


def holds_all(old: AtomicType, new: AtomicType) -> bool:
    """Whether every value of the old type is exactly a value of the new type."""
    digits = _DIGITS.get(old.root)
    if digits is not None and new.root in _DIGITS:
        return _DIGITS[new.root] >= digits
    if digits is not None and new.root == "DECIMAL":
        return _whole_digits(new) >= digits
    if new.root in _EXACT_FLOATS.get(old.root, ()):
        return True
    if new.root in _LONGER.get(old.root, ()):
        return (new.length or 0) >= (old.length or 0)
    if old.root != new.root or old.precision is None or new.precision is None:
        return False
    if old.root == "DECIMAL":
        return _whole_digits(new) >= _whole_digits(old) and (new.scale or 0) >= (old.scale or 0)
    # Nanoseconds cover only 1677 to 2262.
    same_reach = old.root == "TIME" or (old.precision > _MICROSECONDS) == (
        new.precision > _MICROSECONDS
    )
    return same_reach and new.precision >= old.precision


def common_type(old: AtomicType, new: AtomicType) -> AtomicType | None:
    """The narrowest type that holds every value of both types exactly, None if there is none.

    It is `old` if that is such a type. Lengths of strings and binaries are ignored.
    """
    candidates = [old, new, AtomicType("DOUBLE")]
    both = (old, new)
    if all(type_.root == "DECIMAL" or type_.root in _DIGITS for type_ in both):
        whole = max(_DIGITS.get(type_.root) or _whole_digits(type_) for type_ in both)
        scale = max(type_.scale or 0 for type_ in both)
        if whole + scale <= _DECIMAL_DIGITS_MAX:
            candidates.append(AtomicType("DECIMAL", precision=whole + scale, scale=scale))
    return next((c for c in candidates if _holds(old, c) and _holds(new, c)), None)


def _holds(old: AtomicType, new: AtomicType) -> bool:
    return _is_same(old, new) or holds_all(old, new)


def path_text(path: tuple[str, ...]) -> str:
    """A path in messages."""
    return repr(".".join(path))


def _whole_digits(decimal: AtomicType) -> int:
    return (decimal.precision or 0) - (decimal.scale or 0)


def _wider_types(old: DataType) -> str:
    root = old.root
    if root in _DIGITS:
        whole = [name for name, digits in _DIGITS.items() if digits > _DIGITS[root]]
        names = [
            *whole,
            *_EXACT_FLOATS.get(root, ()),
            f"DECIMAL with {_DIGITS[root]} integer digits",
        ]
        return f"{root} can become {' or '.join(names)}"
    if root in _EXACT_FLOATS:
        return f"{root} can become {' or '.join(_EXACT_FLOATS[root])}"
    if root in _LONGER:
        return f"{root} can become a {' or '.join(_LONGER[root])} of at least the same length"
    if root == "DECIMAL":
        return "DECIMAL can get more digits before and after the point"
    if root in ("TIME", "TIMESTAMP", "TIMESTAMP_LTZ"):
        return f"{root} can get more fractional digits, a timestamp up to 6"
    if isinstance(old, ArrayType | MapType | RowType):
        return "Elements, values of a MAP and fields of a ROW can be widened in place"
    return f"{old.sql()} has no wider type"


def has_variant(type_: DataType) -> bool:
    """Whether values of a type can contain a VARIANT that is stored in parts."""
    if isinstance(type_, AtomicType):
        return type_.root == "VARIANT"
    if isinstance(type_, ArrayType | MultisetType):
        return has_variant(type_.element)
    if isinstance(type_, MapType):
        return has_variant(type_.key) or has_variant(type_.value)
    return isinstance(type_, RowType) and any(has_variant(f.type) for f in type_.fields)
