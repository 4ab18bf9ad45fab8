"""JSON parsing of whole columns with DuckDB, from Arrow to Arrow.

DuckDB keeps every integer of a document exactly, whatever its size. Numbers with a fraction or an
exponent become doubles, so :func:`exact_numbers` first marks them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from keytide.base.row_engine import row_engine

# -- JSON parsing of whole columns with DuckDB, from Arrow to Arrow --------------------------------


class JsonValues(NamedTuple):
    """One column of JSON values.

    ``text`` is the value without quotes (objects and arrays stay JSON text), None for JSON null and
    for a missing value. ``type`` is DuckDB's JSON type (``VARCHAR``, ``BIGINT``, ``UBIGINT``,
    ``DOUBLE``, ``BOOLEAN``, ``OBJECT``, ``ARRAY``, ``NULL``), None for a missing value.
    """

    text: pl.Series
    type: pl.Series

    @property
    def is_number(self) -> pl.Series:
        """Whether the value is a JSON number."""
        return self.type.is_in(["BIGINT", "UBIGINT", "HUGEINT", "DOUBLE"]).fill_null(False)


def query(sql: str, **tables: pa.Table) -> pa.Table:
    """The result of one SELECT over Arrow tables, with rows in input order.

    It uses one thread, because a Spark task has one core, and the order must not depend on
    scheduling.
    """
    with row_engine().cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


def literal(text: str) -> str:
    """A string as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """The inside of a quoted SQL identifier."""
    return name.replace('"', '""')


def pointer(*names: str) -> str:
    """The JSON pointer of a nested field. Unlike a path, it supports every name."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def read_members(documents: pa.Array, pointers: Sequence[str]) -> list[JsonValues]:
    """The fields of JSON objects at some pointers, in that order.

    REQUIRES: every document is valid JSON or None.
    """
    paths = "[" + ", ".join(map(literal, pointers)) + "]"
    picks = ", ".join(f"texts[{i}], types[{i}]" for i in range(1, len(pointers) + 1))
    if not pointers:
        return []
    found = query(
        f"SELECT {picks} FROM (SELECT json_extract_string(document, {paths}) AS texts,"
        f" json_type(document, {paths}) AS types FROM documents)",
        documents=pa.table({"document": documents}),
    )
    columns = [pl.Series(values=column, dtype=pl.String) for column in found.columns]
    return [_unmarked(*pair) for pair in zip(columns[::2], columns[1::2], strict=True)]


def read_elements(values: JsonValues) -> tuple[pa.Array, JsonValues]:
    """Array lengths (None if the value is not an array) and all elements in one column.

    A string that contains a JSON array counts as one.
    """
    return _read_parts(values, "ARRAY", "'$[*]'")


def read_entries(values: JsonValues) -> tuple[pa.Array, JsonValues, JsonValues]:
    """Object sizes (None if the value is not an object), all keys and all their values."""
    lengths, items = _read_parts(values, "OBJECT", "'$.*'")
    documents = pa.table({"document": from_json_text(values, "OBJECT")})
    keys = query("SELECT unnest(json_keys(document)) FROM documents", documents=documents)
    names = pl.Series(values=keys.column(0), dtype=pl.String)
    types = pl.repeat("VARCHAR", len(names), dtype=pl.String, eager=True)
    return lengths, JsonValues(names, types), items


def from_json_text(values: JsonValues, type_: str) -> pa.Array:
    """The JSON text of each value with one JSON type, also that in strings, None for others."""
    wanted = literal(type_)
    found = query(
        f"SELECT CASE WHEN type = {wanted} THEN text"
        " WHEN type = 'VARCHAR' AND json_valid(text)"
        f" THEN CASE WHEN json_type(text) = {wanted} THEN text END END AS document FROM texts",
        texts=pa.table({"text": values.text.to_arrow(), "type": values.type.to_arrow()}),
    )
    return found.column(0).combine_chunks()


def exact_numbers(documents: pl.Series, *, as_written: bool = True) -> pl.Series:
    """Mark numbers in the documents so that they are read with all their digits.

    `as_written` marks each number with a fraction or an exponent, otherwise only those with more
    digits than a double can hold. REQUIRES: every document is valid JSON or None. Documents without
    such a number are unchanged.
    """
    number = _FRACTION if as_written else _LONG_FRACTION
    suspects = documents.str.contains(number).fill_null(False).arg_true()
    counts = documents.gather(suspects).str.replace_all(_STRING, "").str.count_matches(number)
    affected = suspects.filter(counts > 0)
    if affected.is_empty():
        return documents
    texts = documents.gather(affected)
    marked = texts.str.replace_all(number, f'"{_MARK_JSON}${{0}}"')
    # A string can also contain text that looks like a number. These documents need the slower way:
    # one pass, whose pattern always matches from the current position to the next number or to the
    # end, so that it never starts inside a string. It leaves an empty mark at the end.
    is_plain = texts.str.count_matches(number) == counts.filter(counts > 0)
    if not is_plain.all():
        up_to_number = rf'((?:{_STRING}|[^"])*?)({number}|$)'
        outside = texts.str.replace_all(up_to_number, f'${{1}}"{_MARK_JSON}${{2}}"')
        marked = marked.zip_with(is_plain, outside.str.strip_suffix(f'"{_MARK_JSON}"'))
    # scatter works in place, and the caller compares by identity.
    rewritten: pl.Series = documents.clone().scatter(affected, marked)
    return rewritten


def without_marks(text: pl.Series) -> pl.Series:
    """JSON text with its numbers as they were written."""
    return text.str.replace_all(rf'"{re.escape(_MARK_JSON)}([^"]*)"', "${1}")


_DOUBLE_DIGITS = 15
_EXPONENT = r"[eE][-+]?\d+"
_LONG_FRACTION = (
    rf"-?(?:\d{{{_DOUBLE_DIGITS},}}\.\d+|"
    + "|".join(rf"\d{{{n}}}\.\d{{{_DOUBLE_DIGITS + 1 - n},}}" for n in range(1, _DOUBLE_DIGITS))
    + rf")(?:{_EXPONENT})?|-?\d{{{_DOUBLE_DIGITS + 1},}}{_EXPONENT}"
)
_FRACTION = rf"-?\d+(?:\.\d+(?:{_EXPONENT})?|{_EXPONENT})"
_STRING = r'"(?:[^"\\]|\\.)*"'
# A string that begins with the mark is a number in the document. The character has to be escaped in
# JSON, and no database writes it at the start of a text.
_MARK, _MARK_JSON = "\x01number:", r"\u0001number:"


def _unmarked(texts: pl.Series, types: pl.Series) -> JsonValues:
    """The values, with marked numbers as numbers."""
    is_marked = (types == "VARCHAR") & texts.str.starts_with(_MARK)
    if not is_marked.any():
        return JsonValues(texts, types)
    number = types.set(is_marked.fill_null(False), "DOUBLE")
    return JsonValues(texts.str.strip_prefix(_MARK), number)


def _read_parts(values: JsonValues, type_: str, path: str) -> tuple[pa.Array, JsonValues]:
    documents = pa.table({"document": from_json_text(values, type_)})
    parts = query(
        f"SELECT unnest(json_extract_string(document, {path})),"
        f" unnest(json_type(document, {path})) FROM documents",
        documents=documents,
    )
    lengths = query(
        f"SELECT CASE WHEN document IS NOT NULL THEN len(json_type(document, {path})) END"
        " FROM documents",
        documents=documents,
    )
    texts, types = (pl.Series(values=column, dtype=pl.String) for column in parts.columns)
    return lengths.column(0).combine_chunks(), _unmarked(texts, types)
