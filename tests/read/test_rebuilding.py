"""The index that the rows of a bucket give: the same in parts, and each of these takes little."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import keytide as kt
from keytide.key_index.indexed_keys import Entries
from keytide.read.key_index_rebuild import settled_bucket
from keytide.snapshot.bucket_key_index import KeyIndex
from keytide.snapshot.live_files import load_dead_rows
from keytide.write.refusals import writable_view
from new_tables import empty_table

ROWS, KEYS, WRITES = 12_000, 15_000, 3

COMPARED: dict[str, dict[str, str]] = {
    "by number": {"sequence.field": "at"},
    "by text": {"sequence.field": "text"},
    "by arrival": {},
    "by column of each producer": {"sequence.field": "a,b"},
}


def filled_table(options: dict[str, str]) -> kt.Table:
    """A table in which keys have rows that live, rows that were replaced, and deletes."""
    schema = pa.schema(
        [pa.field("k", pa.int64(), nullable=False), ("at", pa.int64()), ("text", pa.string()),
         ("a", pa.int64()), ("b", pa.int64())]
    )  # fmt: skip
    table = empty_table(schema, ["k"], options={"upsert.mode": "full", **options})
    rng = np.random.default_rng(0)
    for number in range(WRITES):
        at = rng.integers(0, 1000, ROWS)
        is_of_a = np.full(ROWS, number % 2 == 0)
        columns = [
            rng.integers(0, KEYS, ROWS), at, pa.array(at).cast(pa.string()),
            pa.array(at, mask=~is_of_a), pa.array(at, mask=is_of_a),
        ]  # fmt: skip
        kinds = pa.array(np.where(rng.random(ROWS) < 0.1, "-D", "+I"))
        rows = pa.table(columns, schema=schema)
        table.write(rows.append_column("_row_kind", kinds))
    return table


def rebuilder(table: kt.Table) -> Callable[[int], KeyIndex]:
    """What builds the index of the only bucket with so much memory."""
    state = table.stored.state_to_write(writable_view(table.stored))
    view, entries = state.view, state.live.entries
    dead = load_dead_rows(view.store, tuple(state.vector_files), view.name)

    def build(memory_bytes: int) -> KeyIndex:
        options = replace(view.options, read_memory_bytes=memory_bytes)
        return settled_bucket(replace(view, options=options), entries, dead).index

    return build


@pytest.mark.one_in(14)
@pytest.mark.parametrize("options", COMPARED.values(), ids=COMPARED.keys())
def test_index_in_parts_is_that_in_one(options: dict[str, str]) -> None:
    build = rebuilder(filled_table(options))
    whole, parts = build(1 << 30), build(1)
    assert parts.head == whole.head
    one, other = (Entries.together([*index.pieces()]) for index in (whole, parts))
    assert len(one) > KEYS // 2
    for name in ("files", "positions", "comparisons"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert np.array_equal(one.hashes.heads, other.hashes.heads)


def test_parts_take_less_memory() -> None:
    build = rebuilder(filled_table({"sequence.field": "at"}))
    assert peak(lambda: build(1)) < peak(lambda: build(1 << 30)) / 2


def peak(action: Callable[[], object]) -> int:
    """The most bytes that arrays took at a time."""
    action()  # what is loaded or kept once is no part of it
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
