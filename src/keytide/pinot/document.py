"""Parses Pinot's JSON documents, member by member, into frozen dataclasses.

Each field of a dataclass states its member and how the value is read. Like Pinot's own reader, this
one accepts `"true"` for `true` and `"5"` for 5, and treats null as a missing member.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from keytide.base.arguments import shown
from keytide.errors import InvalidError

__all__ = [
    "Document",
    "Given",
    "Reader",
    "anything",
    "at",
    "boolean",
    "choice",
    "document_of",
    "documents",
    "map_of",
    "member",
    "member_names",
    "number",
    "read",
    "refuse_unknown",
    "said",
    "text",
    "texts",
]

Document: TypeAlias = Mapping[str, Any]
Given: TypeAlias = "Mapping[str, Any] | str | Path"
"""A document: a dict, a JSON string, or the path of a file."""

Reader: TypeAlias = Callable[[Any], Any]
"""Returns the typed value of a member, or raises `ValueError` with the expected value."""

_T = TypeVar("_T")


def document_of(given: Given, what: str) -> Document:
    """The document that a caller passes. Raises `InvalidError` if it is not a JSON object."""
    if isinstance(given, Mapping):
        return given
    content, named = given, what
    if isinstance(given, Path) or not given.lstrip().startswith("{"):
        named = f"{what} {str(given)!r}"
        try:
            content = Path(given).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise InvalidError(
                f"{named} cannot be read: {error}; pass a dict, a JSON string or a file path"
            ) from error
    try:
        document = json.loads(str(content))
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"{named} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidError(f"{named} is {shown(document)}; expected a JSON object")
    return document


# -- value readers ---------------------------------------------------------------------------------


def anything(value: Any) -> Any:
    """Any value."""
    return value


def text(value: Any) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty string")
    return value


def boolean(value: Any) -> bool:
    """True or false."""
    known = {"true": True, "false": False}.get(str(value).lower())
    if known is None or not isinstance(value, bool | str):
        raise ValueError("true or false")
    return known


def number(value: Any) -> float:
    """A number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a number")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError("a number") from None


def choice(*words: str) -> Reader:
    """One of some values, case-insensitively."""

    def chosen(value: Any) -> str:
        if not isinstance(value, str) or value.upper() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return value.upper()

    return chosen


def texts(value: Any) -> tuple[str, ...]:
    """A list of strings."""
    if not isinstance(value, list | tuple):
        raise ValueError("a list of strings")
    return tuple(map(text, value))


def map_of(reader: Reader) -> Reader:
    """An object whose members all have the same type."""

    def read_each(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError("an object")
        return {str(name): reader(each) for name, each in value.items()}

    return read_each


def documents(value: Any) -> tuple[Document, ...]:
    """A list of objects."""
    if not isinstance(value, list | tuple) or not all(isinstance(v, Mapping) for v in value):
        raise ValueError("a list of objects")
    return tuple(value)


# -- members of a dataclass ------------------------------------------------------------------------


def member(name: str, reader: Reader, default: Any = None) -> Any:
    """A dataclass field for a member. `default` is used if it is missing."""
    return field(default=default, metadata={"member": name, "reader": reader})


def member_names(made: type[Any]) -> list[str]:
    """The member names of the fields of a dataclass."""
    return [each.metadata["member"] for each in _held(made)]


def said(value: Any) -> set[str]:
    """The members whose value differs from the default."""
    return {
        each.metadata["member"]
        for each in _held(type(value))
        if getattr(value, each.name) not in (each.default, {}, ())
    }


def read(made: type[_T], document: Document, where: str, **others: Any) -> _T:
    """Read the members of a document into a dataclass. `others` are its other fields.

    Unknown members are ignored. Raises `InvalidError`, naming `where` and the invalid member.
    """
    values = {
        each.name: at(document, where, each.metadata["reader"], each.metadata["member"])
        for each in _held(made)
    }
    return made(**others, **{name: value for name, value in values.items() if value is not None})


def _held(made: Any) -> Iterator[Field[Any]]:
    return (each for each in fields(made) if "member" in each.metadata)


def at(document: Document, where: str, reader: Reader, *path: str) -> Any:
    """Read the value at a path of members, None if it is missing."""
    value: Any = document
    for place, name in enumerate(path):
        if not isinstance(value, Mapping):
            raise _misfit(where, path[:place], "an object", value)
        value = value.get(name)
        if value is None:
            return None
    try:
        return reader(value)
    except ValueError as error:
        raise _misfit(where, path, str(error), value) from None


def refuse_unknown(document: Document, known: Iterable[str], where: str) -> None:
    """Raise `InvalidError`, with similar names, for an unknown member."""
    names = list(known)
    for name in document:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "remove it"
            raise InvalidError(f"{where} has the unknown member {str(name)!r}; {hint}")


def _misfit(where: str, path: Iterable[str], expected: str, found: Any) -> InvalidError:
    named = ".".join(path)
    return InvalidError(f"{where}: {named!r} is {shown(found)}; expected {expected}")
