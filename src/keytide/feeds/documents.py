"""Messages as JSON documents, validated one by one before they are read."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
import pyarrow as pa

from keytide.errors import InvalidError
from keytide.feeds.json_sql import exact_numbers, query

__all__ = ["Documents", "as_bytes", "read_documents", "texts_of"]


class Documents(NamedTuple):
    """Messages as JSON, one line each.

    ``text`` is a JSON object, None for anything else. ``shape`` is the JSON type of the message,
    ``NULL`` for a NULL message too, ``GARBLED`` for bytes that are not UTF-8, or ``INVALID``.
    """

    text: pl.Series
    shape: pl.Series

    def with_exact_numbers(self, *, as_written: bool = True) -> Documents:
        """Rewrite documents so that numbers are read without loss, see `exact_numbers`.

        Returns self if there is none to rewrite.
        """
        exact = exact_numbers(self.text, as_written=as_written)
        return self if exact is self.text else self._replace(text=exact)


def as_bytes(messages: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Messages as bytes. Raises `InvalidError` for messages that are neither strings nor bytes."""
    try:
        return messages.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise InvalidError(
            f"messages: found {messages.type}, expected JSON documents as strings or bytes"
        ) from error


def read_documents(messages: pa.Array | pa.ChunkedArray) -> Documents:
    """The messages, validated one by one. Raises as `as_bytes`."""
    messages = as_bytes(messages)
    text = texts_of(messages)
    found = query(_SHAPES_SQL, documents=pa.table({"document": text.to_arrow()}))
    is_null = pl.Series(values=messages.is_null())
    shape = pl.Series(values=found.column("shape")).set(is_null, "NULL")
    return Documents(text.set(shape != "OBJECT", None), shape)


_SHAPES_SQL = """
    SELECT CASE
        WHEN document IS NULL THEN 'GARBLED'
        WHEN NOT json_valid(document) THEN 'INVALID'
        WHEN starts_with(document, '{') THEN 'OBJECT'
        ELSE json_type(document) END AS shape
    FROM documents"""


def texts_of(messages: pa.Array | pa.ChunkedArray) -> pl.Series:
    """Messages as strings, None for bytes that are not UTF-8."""
    try:
        # Strings are validated like bytes, because nothing guarantees that they are UTF-8.
        text = messages.cast(pa.large_binary()).cast(pa.large_string())
        return pl.Series(values=text, dtype=pl.String)
    except pa.ArrowInvalid:
        found = query(
            "SELECT try(decode(message)) FROM messages",
            messages=pa.table({"message": messages.cast(pa.large_binary())}),
        )
        return pl.Series(values=found.column(0), dtype=pl.String)
