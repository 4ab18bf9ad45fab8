"""A large bucket is read by ranges of its keys: the same rows, in tasks of about equal size."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import cycle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.read.key_ranges import by_key_range
from keytide.read.scan import ReadTask

ENGINES = {
    "deduplicate": {},
    "deduplicate by a sequence": {"sequence.field": "ts"},
    "partial-update": {"merge-engine": "partial-update"},
    "aggregation": {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
    "first-row": {"merge-engine": "first-row"},
    "deletion vectors": {
        "deletion-vectors.enabled": "true",
        "deletion-vectors.merge-on-read": "true",
    },
    "lookup": {"changelog-producer": "lookup"},
    "index of keys": {"upsert.mode": "full"},
}
KEYS: dict[str, tuple[list[str], Any]] = {
    "a number": (["k"], lambda k: {"k": k}),
    "a column that is the same, and a number": (["t", "k"], lambda k: {"t": "hot", "k": k}),
    "a few values, and a number": (["t", "k"], lambda k: {"t": f"t{k % 3}", "k": k}),
    "a number, and a string": (["k", "t"], lambda k: {"k": k // 7, "t": f"é{k % 7}"}),
    "a string": (["t"], lambda k: {"t": f"k{k:06}"}),
    "a fraction, which is not cut": (["f"], lambda k: {"f": k / 8}),
}
COLUMNS = {"k": pa.int64(), "t": pa.string(), "f": pa.float64()}


def hot_table(warehouse: str, key: str, options: dict[str, str], runs: list[list[int]]) -> kt.Table:
    """A table with one bucket and a run for each list of numbers. The first run is compacted."""
    names, key_of = KEYS[key]
    schema = pa.schema([
        *((name, COLUMNS[name]) for name in names), ("ts", pa.int64()), ("v", pa.int64()),
    ])  # fmt: skip
    small_files = {"bucket": "1", "target-file-size": "4 kb", "write-only": "true"}
    table = kt.connect(warehouse).create_table(
        "d.hot", schema, names, options={**small_files, **options}
    )
    for number, run in enumerate(runs):
        rows = [{**key_of(k), "ts": (k * 7 + number) % 5, "v": k + number} for k in run]
        table.write(pa.Table.from_pylist(rows, schema))
        if not number:
            table.compact(full=True)
    return table


def rows_of(tasks: list[ReadTask]) -> list[tuple[Any, ...]]:
    frames = [frame for task in tasks for frame in task.frames(1 << 20)]
    return sorted(row for frame in frames for row in frame.rows())


def pairs(keys: Iterable[str], engines: Iterable[str]) -> list[tuple[str, str]]:
    """Each key with one engine, and each engine with one key."""
    first, others = [*keys], [*engines]
    return list(zip(cycle(first), others)) + [(key, others[0]) for key in first[1:]]


@pytest.mark.parametrize(("key", "engine"), pairs(KEYS, ENGINES))
def test_ranges_have_the_rows_of_the_whole(warehouse: str, engine: str, key: str) -> None:
    numbers = random.Random(engine + key)
    runs = [[*range(1500)], *(numbers.sample(range(-250, 1750), 300) for _ in range(3))]
    table = hot_table(warehouse, key, ENGINES[engine], runs)
    if engine in ("deduplicate", "deduplicate by a sequence", "deletion vectors", "lookup"):
        table.delete("v = 750")
    whole = table.scan(where="v < 1500").tasks()
    stored, rows = sum(task.stored_bytes for task in whole), rows_of(whole)
    for count in (2, 5, 16):
        parts = [part for task in whole for part in by_key_range(task, stored // count)]
        assert rows_of(parts) == rows


@pytest.mark.parametrize(
    ("key", "engine"),
    pairs([*KEYS][:4], ["deduplicate", "partial-update", "aggregation", "first-row"]),
)
def test_one_hot_bucket_gives_balanced_tasks(warehouse: str, engine: str, key: str) -> None:
    numbers = random.Random(key)
    runs = [[*range(20_000)], *(numbers.sample(range(20_000), 2000) for _ in range(4))]
    table = hot_table(warehouse, key, ENGINES[engine], runs)
    (task,) = table.scan().tasks()
    parts = by_key_range(task, task.stored_bytes // 8)
    rows = [sum(frame.height for frame in part.frames(1 << 24)) for part in parts]
    assert sum(rows) == 20_000
    assert 7 <= len(parts) <= 9
    assert max(rows) <= 1.5 * 20_000 / len(parts)


@given(
    st.sampled_from([*KEYS]),
    st.sampled_from([*ENGINES]),
    st.lists(st.lists(st.integers(-50, 250), min_size=1, max_size=200), min_size=1, max_size=6),
    st.integers(1, 12),
)
def test_ranges_have_the_rows_of_the_whole_for_any_runs(
    tmp_path_factory: pytest.TempPathFactory,
    key: str,
    engine: str,
    runs: list[list[int]],
    count: int,
) -> None:
    warehouse = str(tmp_path_factory.mktemp("w"))
    whole = hot_table(warehouse, key, ENGINES[engine], runs).scan().tasks()
    for task in whole:
        parts = by_key_range(task, task.stored_bytes // count)
        assert rows_of(parts) == rows_of([task])
