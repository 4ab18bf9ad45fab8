"""Documents from messages: their values, with the fields of their keys if the feed needs them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from keytide.feeds.documents import as_bytes, texts_of
from keytide.feeds.json_rows import DELETED
from keytide.feeds.json_sql import literal, query

__all__ = ["rows_with_keys"]


def rows_with_keys(messages: pa.Table, key: Sequence[str], *, is_ordered: bool) -> pa.ChunkedArray:
    """The values of messages with plain rows, with missing fields added from their keys.

    A key is a JSON object, with or without a schema. If `key` is one column, a JSON string or any
    other text is its value. A message without a value is a deleted row. If `is_ordered` says that
    rows have places in an order, the delete has none. Values that are not objects are unchanged.
    """
    raw = pl.Series(values=as_bytes(messages["message"]), dtype=pl.Binary)
    value = texts_of(messages["message"])
    texts = pa.table({"key": texts_of(messages["key"]).to_arrow(), "value": value.to_arrow()})
    deleted = f'{{"{DELETED}":{_UNORDERED if is_ordered else "true"}}}'
    found = query(_joined_sql(_members_sql(key), deleted), messages=texts).column(0)
    joined = pl.Series(values=found, dtype=pl.String).cast(pl.Binary)
    # Nothing is added to bytes that are not text.
    made = joined.zip_with(raw.is_null() | value.is_not_null(), raw)
    return pa.chunked_array([made.to_arrow().cast(pa.large_binary())])


_UNORDERED = '"unordered"'


def _joined_sql(members: str, deleted: str) -> str:
    """Concatenated objects. Of two fields with the same name, the first one counts."""
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
    """The key of a message as an object, NULL if it is not one."""
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
