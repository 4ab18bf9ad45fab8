"""JSON files of a table, written in the style of Java's pretty printer.

The style carries no meaning to a reader. Keeping it lets files be compared byte by byte with
those of other writers, and makes a lost response recognisable by equality.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from keytide.errors import DataError

__all__ = [
    "read_document",
    "write_document",
]


def read_document(data: bytes, path: str) -> dict[str, Any]:
    """Parse a file that holds one JSON object; numbers with a fraction become Decimal.

    DataError, naming `path`, when the file is torn or holds something else.
    """
    try:
        document = json.loads(data, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a complete JSON document ({error})") from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(document).__name__}")
    return document


def write_document(document: Mapping[str, Any]) -> bytes:
    """The UTF-8 bytes of a JSON object, members in the mapping's order, no newline at the end."""
    return _text(document, indent="").encode()


def _text(value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        return _object_text(value, indent)
    if isinstance(value, (list, tuple)):
        items = [_text(item, indent) for item in value]
        return f"[ {', '.join(items)} ]" if items else "[ ]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def _object_text(value: Mapping[str, Any], indent: str) -> str:
    if not value:
        return "{ }"
    inner = indent + "  "
    members = [
        f"{inner}{json.dumps(name, ensure_ascii=False)} : {_text(member, inner)}"
        for name, member in value.items()
    ]
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"
