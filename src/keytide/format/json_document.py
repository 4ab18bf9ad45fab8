"""JSON files of a table, in the style of Java's pretty printer.

The style has no meaning for readers. It makes files comparable member by member with those of other
writers, and a file written in a call whose response was lost can be recognized by equality. The
last member is a checksum of all others. Readers ignore members that they do not know.

A document has one description, the function that reads it. What will be written is read back first,
so nothing can be stored that cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from keytide.base.dataclass import dataclass
from keytide.base.text import is_moment
from keytide.errors import DataError, InvalidError, KeytideError
from keytide.format.checksum import DOCUMENT_SEAL, SEAL_KEY, UNSEALED

T = TypeVar("T")


@dataclass(frozen=True)
class MemberType:
    """The allowed content of a member, and its name in messages."""

    name: str
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and -(2**63) <= value < 2**63


INTEGER = MemberType("an integer of at most 64 bits", _is_integer)
TIME = MemberType(
    "epoch milliseconds in the years 1000 to 8999", lambda v: _is_integer(v) and is_moment(v)
)
TEXT = MemberType("a string", _is_text)
TEXTS = MemberType("a list of strings", lambda v: isinstance(v, list) and all(map(_is_text, v)))
TEXT_BY_NAME = MemberType(
    "an object with string values", lambda v: isinstance(v, dict) and all(map(_is_text, v.values()))
)
OBJECT = MemberType("an object", lambda v: isinstance(v, dict))
OBJECTS = MemberType(
    "a list of objects", lambda v: isinstance(v, list) and all(isinstance(m, dict) for m in v)
)


def read_document(data: bytes, path: str) -> dict[str, Any]:
    """Parse a file with one JSON object. Numbers with a fraction become Decimal.

    Raises DataError, which names `path`, if the file is damaged or contains something else.
    """
    try:
        document = json.loads(data, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a complete JSON document ({error})") from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(document).__name__}")
    if not DOCUMENT_SEAL.is_intact(data):
        raise DataError(f"{path}: the checksum does not match; restore the file")
    return document


def member(document: Mapping[str, Any], name: str, type_: MemberType, path: str) -> Any:
    """A required member.

    Raises `DataError`, which names `path`, if it is missing or has another type.
    """
    value = document.get(name)
    if not type_.fits(value):
        found = "nothing" if value is None else repr(value)
        raise DataError(f"{path}: member {name!r} must be {type_.name}, found {found}")
    return value


def optional_member(
    document: Mapping[str, Any], name: str, type_: MemberType, path: str, default: Any = None
) -> Any:
    """The same, or `default` for a member that is missing or null."""
    return default if document.get(name) is None else member(document, name, type_, path)


def write_document(
    value: T, document_of: Callable[[T], Mapping[str, Any]], parse: Callable[[bytes, str], T]
) -> bytes:
    """The UTF-8 bytes of a value's document, with members in order, then its checksum.

    Raises InvalidError unless `parse` returns an equal value: what cannot be read is not written.
    """
    what = type(value).__name__
    try:
        document = {**document_of(value), SEAL_KEY: UNSEALED}
        data = DOCUMENT_SEAL.set(_text(document, indent="").encode())
        read = parse(data, what)
    except KeytideError as error:
        raise InvalidError(
            f"{what} cannot be stored, because it could not be read back: {error}"
        ) from error
    except (AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidError(f"{what} cannot be stored as JSON: {error}") from error
    if read != value:
        raise InvalidError(
            f"{what} {value!r} cannot be stored, because it would be read back as {read!r}"
        )
    return data


def _text(value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        if not value:
            return "{ }"
        inner = indent + "  "
        members = [
            f"{inner}{json.dumps(name, ensure_ascii=False)} : {_text(member, inner)}"
            for name, member in value.items()
        ]
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)):
        items = [_text(item, indent) for item in value]
        return f"[ {', '.join(items)} ]" if items else "[ ]"
    if isinstance(value, Decimal):
        # Java writes no exponent.
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)
