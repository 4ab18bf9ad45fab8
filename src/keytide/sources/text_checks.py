"""Checks of text files that the parsers of CSV and JSON read in another way, or not at all.

Arrow's parser of CSV takes the rest of a file for one value if a quote is not closed, and its
parser of JSON reads `null` and two objects in one line as rows.
"""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from keytide.errors import InvalidError

__all__ = ["check_csv", "json_names"]

Opening: TypeAlias = "Callable[[], AbstractContextManager[pa.NativeFile]]"

_BLOCK_BYTES = 8 << 20


def check_csv(open_: Opening, delimiter: str, quote: str) -> None:
    """Read a CSV file, and raise `InvalidError`, naming the line, if quotes are not as they must.

    A quote that opens a value is closed before the end, and a delimiter or the end of the line
    follows. Other quotes are a part of their value.
    """
    with open_() as opened:
        if not _holds(opened, quote.encode()):
            return
    with open_() as opened:
        _check_quotes(opened, delimiter, quote)


def _check_quotes(opened: pa.NativeFile, delimiter: str, quote: str) -> None:
    # A value can be as large as a block. The limit of this process is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), _BLOCK_BYTES))
    text = io.TextIOWrapper(opened, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=delimiter, quotechar=quote, strict=True)
    try:
        deque(reader, maxlen=0)
    except csv.Error as error:
        raise InvalidError(
            f"line {reader.line_num}: {error}; close each quote that opens a value, and double "
            "the quotes inside of it"
        ) from error
    finally:
        text.detach()


def _holds(opened: pa.NativeFile, sign: bytes) -> bool:
    return any(sign in block for block in _blocks(opened))


def _blocks(opened: pa.NativeFile) -> Iterator[bytes]:
    while block := opened.read(_BLOCK_BYTES):
        yield block


def json_names(text: bytes) -> frozenset[str] | None:
    """The names in the objects of a file with one JSON object in each line. None without objects.

    Raises `InvalidError` for anything but an object in a line.
    """
    try:
        rows = pl.read_ndjson(text, schema={"\0": pl.String}).height
    except pl.exceptions.PolarsError as error:
        if (why := _why(text)) is not None:
            raise InvalidError(why) from error
        return _names_by_line(text)  # NaN and Infinity, which Arrow reads
    if not rows:
        return None
    try:
        return frozenset(pl.scan_ndjson(text, infer_schema_length=None).collect_schema().names())
    except pl.exceptions.PolarsError:  # members of types that no column can have together
        return _names_by_line(text)


def _names_by_line(text: bytes) -> frozenset[str]:
    lines = filter(None, map(bytes.strip, text.split(b"\n")))
    return frozenset().union(*map(json.loads, lines))


def _why(text: bytes) -> str | None:
    """What is wrong with a file, with the first line that is no object. None if each is one."""
    if text.startswith(b"\xef\xbb\xbf"):
        return "it begins with a byte order mark; save it as UTF-8 without one"
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip() and not _is_object(line):
            shown = line[:40].decode(errors="replace")
            return f"line {number} is {shown!r}; expected one JSON object in each line"
    return None


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
