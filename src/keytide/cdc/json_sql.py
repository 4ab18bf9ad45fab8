"""JSON parsing of whole columns with DuckDB, from Arrow to Arrow.

DuckDB keeps every integer of a document exactly, whatever its size. Fractions become doubles, so
:func:`exact_numbers` first puts long fractions in quotes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from keytide.row_engine import row_engine

__all__ = [
    "JsonValues",
    "exact_numbers",
    "from_json_text",
    "literal",
    "pointer",
    "query",
    "read_elements",
    "read_entries",
    "read_members",
]


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
    columns = [_strings(column) for column in found.columns]
    return [JsonValues(*pair) for pair in zip(columns[::2], columns[1::2], strict=True)]


def read_elements(values: JsonValues) -> tuple[pa.Array, JsonValues]:
    """Array lengths (None if the value is not an array) and all elements in one column.

    A string that contains a JSON array counts as one.
    """
    return _read_parts(values, "ARRAY", "'$[*]'")


def read_entries(values: JsonValues) -> tuple[pa.Array, JsonValues, JsonValues]:
    """Object sizes (None if the value is not an object), all keys and all their values."""
    lengths, items = _read_parts(values, "OBJECT", "'$.*'")
    keys = query(
        "SELECT unnest(json_keys(document)) FROM documents",
        documents=_documents(values, "OBJECT"),
    )
    names = _strings(keys.column(0))
    types = pl.repeat("VARCHAR", len(names), dtype=pl.String, eager=True)
    return lengths, JsonValues(names, types), items


def from_json_text(values: JsonValues, type_: str) -> pa.Array:
    """The JSON text of the values with one JSON type, None for others."""
    return _documents(values, type_).column(0).combine_chunks()


def exact_numbers(documents: pl.Series) -> pl.Series:
    """Quote each fraction in the documents that has more digits than a double can hold.

    REQUIRES: every document is valid JSON or None. Documents without such a number are unchanged.
    """
    suspects = documents.str.contains(_LONG_FRACTION).fill_null(False).arg_true()
    counts = (
        documents.gather(suspects).str.replace_all(_STRING, "").str.count_matches(_LONG_FRACTION)
    )
    affected = suspects.filter(counts > 0)
    if affected.is_empty():
        return documents
    texts = documents.gather(affected)
    quoted = texts.str.replace_all(_LONG_FRACTION, '"${0}"')
    # A string can also contain text that looks like a number. These documents need the slower way.
    is_plain = texts.str.count_matches(_LONG_FRACTION) == counts.filter(counts > 0)
    if not is_plain.all():
        quoted = quoted.zip_with(is_plain, _quote_outside_strings(texts))
    # scatter works in place, and the caller compares by identity.
    rewritten: pl.Series = documents.clone().scatter(affected, quoted)
    return rewritten


_DOUBLE_DIGITS = 15
_LONG_FRACTION = (
    rf"-?(?:\d{{{_DOUBLE_DIGITS},}}\.\d+|"
    + "|".join(rf"\d{{{n}}}\.\d{{{_DOUBLE_DIGITS + 1 - n},}}" for n in range(1, _DOUBLE_DIGITS))
    + r")(?:[eE][-+]?\d+)?"
)
_STRING = r'"(?:[^"\\]|\\.)*"'
_UP_TO_FRACTION = rf'((?:{_STRING}|[^"])*?)({_LONG_FRACTION}|$)'


def _quote_outside_strings(documents: pl.Series) -> pl.Series:
    """Quote long fractions in one pass that tracks where strings begin and end.

    The pattern always matches from the current position to the next fraction or to the end, so it
    never starts inside a string. The empty quotes that it leaves at the end are removed.
    """
    return documents.str.replace_all(_UP_TO_FRACTION, '${1}"${2}"').str.strip_chars_end('"')


def _documents(values: JsonValues, type_: str) -> pa.Table:
    """The JSON text of each value with one JSON type, including JSON in strings."""
    wanted = literal(type_)
    return query(
        f"SELECT CASE WHEN type = {wanted} THEN text"
        " WHEN type = 'VARCHAR' AND json_valid(text)"
        f" THEN CASE WHEN json_type(text) = {wanted} THEN text END END AS document FROM texts",
        texts=pa.table({"text": values.text.to_arrow(), "type": values.type.to_arrow()}),
    )


def _read_parts(values: JsonValues, type_: str, path: str) -> tuple[pa.Array, JsonValues]:
    documents = _documents(values, type_)
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
    texts, types = (_strings(column) for column in parts.columns)
    return lengths.column(0).combine_chunks(), JsonValues(texts, types)


def _strings(column: pa.ChunkedArray) -> pl.Series:
    return pl.Series(values=column, dtype=pl.String)
