"""Types and fields of a schema file: strings for scalar types, JSON objects for nested ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keytide.errors import InvalidError
from keytide.types.logical import (
    ArrayType,
    DataType,
    Field,
    MapType,
    MultisetType,
    RowType,
    VectorType,
)
from keytide.types.text import TypeText, nullability, parse_stored_text

__all__ = ["parse_field", "parse_type"]


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
        return parse_stored_text(value)
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
