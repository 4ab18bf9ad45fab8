"""Feeds captured from a PostgreSQL server, checked against the rows that it ended with."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keytide.cdc import FeedSpec, decode, default_sequence
from keytide.types import Field, type_from_arrow

FEEDS = Path(__file__).parent.parent / "data" / "cdc"


def messages_of(table: str) -> list[str]:
    return gzip.decompress((FEEDS / table / "changes.jsonl.gz").read_bytes()).decode().splitlines()


def final_rows(table: str) -> pa.Table:
    return pq.read_table(FEEDS / table / "final.parquet")


def spec_of(table: str, messages: list[str], key: str, empty_as_null: frozenset[str]) -> FeedSpec:
    columns = [Field(-1, f.name, type_from_arrow(f.type)) for f in final_rows(table).schema]
    sequence = default_sequence(pa.array(messages[:100]), "debezium-json")
    assert [source.column for source in sequence] == ["_epoch", "_commit_lsn", "_lsn"]
    return FeedSpec(
        "debezium-json",
        (*columns, *(source.to_field() for source in sequence)),
        (key,),
        sequence,
        empty_as_null,
    )


def table_after(rows: pa.Table, key: str) -> pl.DataFrame:
    """The row of the highest position for each key, deleted keys left out."""
    newest = pl.DataFrame(rows).sort("_lsn", maintain_order=True).unique(key, keep="last")
    return newest.filter(pl.col("_row_kind") != "-D").sort(key)


@pytest.mark.parametrize(
    ("table", "key", "empty_as_null"),
    [
        ("orders", "order_id", frozenset[str]()),
        ("pgbench_accounts", "aid", frozenset({"filler"})),
    ],
)
def test_newest_row_of_each_key_is_the_row_of_the_server(
    table: str, key: str, empty_as_null: frozenset[str]
) -> None:
    messages = messages_of(table)
    result = decode(pa.array(messages), spec_of(table, messages, key, empty_as_null))
    expected = pl.DataFrame(final_rows(table)).sort(key)
    assert result.rejected.num_rows == 0
    assert result.rows.num_rows == len(messages)
    assert table_after(result.rows, key).select(expected.columns).equals(expected)


def test_order_of_arrival_does_not_matter() -> None:
    messages = messages_of("orders")
    spec = spec_of("orders", messages, "order_id", frozenset())
    shuffled = random.Random(7).sample(messages, len(messages))
    there, here = (
        table_after(decode(pa.array(m), spec).rows, "order_id").drop("_ordinal", "_row_kind")
        for m in (messages, shuffled)
    )
    assert there.equals(here)


def test_column_too_narrow_for_the_feed_rejects_only_the_rows_that_do_not_fit() -> None:
    messages = messages_of("orders")
    spec = spec_of("orders", messages, "order_id", frozenset())
    narrow = type_from_arrow(pa.decimal128(4, 2))
    columns = tuple(Field(-1, c.name, narrow) if c.name == "amount" else c for c in spec.columns)
    result = decode(
        pa.array(messages), FeedSpec(spec.format, columns, ("order_id",), spec.sequence)
    )
    assert 0 < result.rejected.num_rows < len(messages)
    assert result.rows.num_rows + result.rejected.num_rows == len(messages)
    assert all("column amount" in reason for reason in result.rejected["reason"].to_pylist())
