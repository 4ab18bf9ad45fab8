"""What messages say, as documents: values, with what their keys add where a feed has it there."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from keytide.cdc.documents import as_bytes, texts_of
from keytide.cdc.json_rows import DELETED
from keytide.cdc.json_sql import literal, query

__all__ = ["rows_with_keys"]


def rows_with_keys(messages: pa.Table, key: Sequence[str], *, is_ordered: bool) -> pa.ChunkedArray:
    """The values of messages of plain rows, with the members that their keys have and they lack.

    A key is a JSON object, bare or beside a schema; where `key` is one column, a JSON string or any
    other text is its value. A message without a value is a row that is deleted; where `is_ordered`
    says that rows have places in an order, it has none. Values that are no objects stay what they
    are.
    """
    raw = pl.Series(values=as_bytes(messages["message"]), dtype=pl.Binary)
    value = texts_of(messages["message"])
    texts = pa.table({"key": texts_of(messages["key"]).to_arrow(), "value": value.to_arrow()})
    deleted = f'{{"{DELETED}":{_UNORDERED if is_ordered else "true"}}}'
    found = query(_joined_sql(_members_sql(key), deleted), messages=texts).column(0)
    joined = pl.Series(values=found, dtype=pl.String).cast(pl.Binary)
    # Bytes that are no text have nothing joined to them.
    made = joined.zip_with(raw.is_null() | value.is_not_null(), raw)
    return pa.chunked_array([made.to_arrow().cast(pa.large_binary())])


_UNORDERED = '"unordered"'


def _joined_sql(members: str, deleted: str) -> str:
    """Objects one behind the other: of two members with one name the first counts."""
    return f"""
        WITH given AS (
            SELECT coalesce(value, {literal(deleted)}) AS value, {members} AS members
            FROM messages)
        SELECT CASE
            WHEN members IS NULL OR NOT json_valid(value) OR NOT json_valid(members) THEN value
            WHEN NOT starts_with(ltrim(value, {_BLANKS}), '{{') THEN value
            WHEN json_array_length(json_keys(members)) = 0 THEN value
            WHEN json_array_length(json_keys(value)) = 0 THEN members
            ELSE left(rtrim(value, {_BLANKS}), -1) || ',' || substr(ltrim(members, {_BLANKS}), 2)
            END
        FROM given"""


_BLANKS = "' \t\r\n'"


def _members_sql(key: Sequence[str]) -> str:
    """The key of a message as an object, NULL where it is none."""
    alone = "NULL"
    if len(key) == 1:
        name = f"to_json({literal(key[0])})"
        value = (
            "CASE WHEN starts_with(key, '\"') AND json_valid(key) THEN key ELSE to_json(key) END"
        )
        alone = f"'{{' || {name} || ':' || {value} || '}}'"
    return f"""CASE
        WHEN key IS NULL THEN NULL
        WHEN starts_with(ltrim(key, {_BLANKS}), '{{') AND json_valid(key) THEN
            CASE WHEN list_sort(json_keys(key)) = ['payload', 'schema']
                THEN json_extract(key, '/payload')::VARCHAR ELSE key END
        ELSE {alone} END"""
