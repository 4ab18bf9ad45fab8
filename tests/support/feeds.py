"""Feeds in few words: a table described by text, messages as dicts, what came out as lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from keytide.cdc import Decoded, FeedSpec, SequenceSource, decode
from keytide.types import Field, parse_sql_type

Message = dict[str, Any] | str | bytes | None


def fields(columns: str) -> tuple[Field, ...]:
    """``id INT; v STRING`` as fields."""
    parts = [column.strip().split(" ", 1) for column in columns.split(";")]
    return tuple(Field(-1, name, parse_sql_type(type)) for name, type in parts)


def feed(format: str, columns: str, *, key: str = "id", **options: Any) -> FeedSpec:
    return FeedSpec(format, fields(columns), tuple(key.split()), **options)


def ordered_feed(format: str, columns: str, *sources: SequenceSource) -> FeedSpec:
    """A feed whose table has the given ordering columns at its end."""
    ordering = tuple(source.to_field() for source in sources)
    return FeedSpec(format, fields(columns) + ordering, ("id",), sources)


def batch(messages: Sequence[Message]) -> pa.Array:
    texts = [json.dumps(m) if isinstance(m, dict) else m for m in messages]
    is_binary = any(isinstance(text, bytes) for text in texts)
    return pa.array(texts, pa.binary() if is_binary else pa.string())


def decoded(spec: FeedSpec, *messages: Message) -> Decoded:
    return decode(batch(messages), spec)


def lines(spec: FeedSpec, *messages: Message) -> list[str]:
    """``0 +I id=1 v=a`` for a row of message 0, ``v?`` for a value left out, ``0 ! reason``."""
    result = decoded(spec, *messages)
    found = [(row["_ordinal"], _row_line(row)) for row in result.rows.to_pylist()]
    found += [(bad["ordinal"], f"! {bad['reason']}") for bad in result.rejected.to_pylist()]
    return [f"{ordinal} {line}" for ordinal, line in sorted(found, key=lambda each: each[0])]


def _row_line(row: dict[str, Any]) -> str:
    values = [
        f"{name}?" if name in row["_unavailable"] else f"{name}={value}"
        for name, value in row.items()
        if name not in ("_row_kind", "_ordinal", "_unavailable", "_message")
    ]
    return " ".join([row["_row_kind"], *values])
