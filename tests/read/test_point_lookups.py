"""A point lookup returns what a scan with the key as its condition returns, in any table."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import AddColumn, RenameColumn
from keytide.read import requests, scan
from keytide.read.lookup_files import LOOKUP_FILES
from keytide.read.point_lookups import point_lookups
from new_tables import fields_of

TABLES: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "the newest version wins": (["k", "s"], [], {"bucket": "2"}),
    "one bucket": (["k"], [], {"bucket": "1"}),
    "few of the key's columns choose the bucket": (
        ["k", "s"], [], {"bucket": "3", "bucket-key": "s"},
    ),
    "partitions": (["s", "k"], ["s"], {"bucket": "2"}),
    "dynamic buckets": (["k", "s"], [], {"bucket": "-1", "dynamic-bucket.target-row-num": "4"}),
    "a sequence field": (["k", "s"], [], {"bucket": "2", "sequence.field": "v"}),
    "deletes are ignored": (["k", "s"], [], {"bucket": "1", "ignore-delete": "true"}),
    "columns are updated": (
        ["k", "s"], [],
        {"bucket": "2", "merge-engine": "partial-update", "ignore-delete": "true"},
    ),
    "sums": (
        ["k", "s"], [],
        {"bucket": "2", "merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
    ),
    "the first version wins": (
        ["k", "s"], [], {"bucket": "1", "merge-engine": "first-row", "ignore-delete": "true"},
    ),
    "compaction by lookup": (["k", "s"], [], {"bucket": "2", "changelog-producer": "lookup"}),
    "bloom filters": (["k"], [], {"bucket": "2", "file-index.bloom-filter.columns": "k"}),
    "mod": (["k"], [], {"bucket": "2", "bucket-function.type": "mod"}),
    "a default": (["k"], [], {"bucket": "2", "fields.v.default-value": "7"}),
    "deletion vectors": (["k", "s"], [], {"bucket": "2", "deletion-vectors.enabled": "true"}),
    "a key index": (["k", "s"], [], {"bucket": "2", "upsert.mode": "full"}),
    "no cache": (["k", "s"], [], {"bucket": "2", "lookup.cache-max-memory-size": "0 b"}),
    "Avro": (["k", "s"], [], {"bucket": "2", "file.format": "avro"}),
}  # fmt: skip
COLUMNS = pa.schema(
    [pa.field("k", pa.int32(), nullable=False), pa.field("s", pa.string(), nullable=False),
     ("v", pa.int64()), ("at", pa.timestamp("us")), ("more", pa.list_(pa.decimal128(9, 2)))]
)  # fmt: skip
NULLS = dict.fromkeys(COLUMNS.names)
KEYS = [(k, s) for k in (-1, 0, 1, 2, 3, 70) for s in ("a", "ä", "b c")]
row = st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 9), st.sampled_from("ID"))
steps = st.lists(
    st.lists(row, min_size=1, max_size=8)
    | st.sampled_from(["compact", "new column", "other name"]),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("which", TABLES)
@given(steps=steps)
def test_lookups_agree_with_scans_after_each_step(
    tmp_path_factory: pytest.TempPathFactory, which: str, steps: list[Any]
) -> None:
    key, partition_by, options = TABLES[which]
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    table = lake.create_table("t", COLUMNS, key, partition_by, options)
    for number, step in enumerate(steps):
        if isinstance(step, list):
            table.write(pa.Table.from_pylist(_rows(step, number, table), schema=_kinds(table)))
        elif step == "compact":
            table.compact()
        elif step == "new column":
            table.alter(AddColumn((f"c{number}",), kt.parse_sql_type("INT")))
        elif step == "other name" and "at" in table.schema.names:
            table.alter(RenameColumn(("at",), "noted"))
        _check(table, key)


def _kinds(table: kt.Table) -> pa.Schema:
    return table.schema.append(pa.field("_row_kind", pa.string()))


def _rows(step: list[Any], number: int, table: kt.Table) -> list[dict[str, Any]]:
    """Rows with a value of each column. Only some engines take deletes."""
    time = "at" if "at" in table.schema.names else "noted"
    keeps_deletes = "merge-engine" in table.options
    return [
        {"k": k, "s": s, "v": v, time: 10**9 * number + 1, "more": [None, v],
         "_row_kind": "-D" if kind == "D" and not keeps_deletes else "+I"}
        for (k, s), v, kind in step
    ]  # fmt: skip


def _check(table: kt.Table, key: list[str]) -> None:
    every, found = [], []
    for values in KEYS:
        wanted = {name: value for name, value in zip(("k", "s"), values, strict=True)
                  if name in key}  # fmt: skip
        if wanted in every:
            continue
        where = " AND ".join(f"{name} = {value!r}" for name, value in wanted.items())
        scanned = table.scan(where=where).to_pylist()
        assert [row for row in [table.get(wanted)] if row] == scanned
        every.append(wanted)
        found += scanned
    assert table.get_many(every).to_pylist() == found
    with patch.object(requests, "KEYS_MAX", 0):  # as if there were many keys
        assert table.get_many(every).to_pylist() == found


# -- which lookups need no scan --------------------------------------------------------------------


SCANNED = {"a default", "deletion vectors", "no cache", "Avro"}


@pytest.mark.parametrize("which", TABLES)
def test_lookup_in_most_tables_plans_no_scan(
    tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, partition_by, options = TABLES[which]
    table = kt.connect(tmp_path).create_table("t", COLUMNS, key, partition_by, options)
    for v in (1, 2):
        table.write(pa.Table.from_pylist(_rows([((1, "a"), v, "I")], v, table), _kinds(table)))
    planned: list[Any] = []
    plan = scan.plan_rows
    monkeypatch.setattr(scan, "plan_rows", lambda *given: planned.append(given) or plan(*given))
    found = table.get({name: value for name, value in (("k", 1), ("s", "a")) if name in key})
    assert found is not None
    assert bool(planned) == (which in SCANNED)


def test_lookups_of_threads_find_what_one_finds(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", COLUMNS, ["k"], options={"bucket": "4"})
    for v in range(3):
        table.write([{**NULLS, "k": k, "s": "", "v": v} for k in range(v, 400)])

    def look_up(k: int) -> Any:
        row = table.get(k)
        return row and row["v"]

    with ThreadPoolExecutor(8) as threads:
        found = [*threads.map(look_up, range(-1, 401))]
    assert found == [None, 0, 1, *[2] * 398, None]


def test_lookup_after_another_process_wrote_sees_its_row(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", COLUMNS, ["k"])
    table.write([{**NULLS, "k": 1, "s": "a"}])
    assert table.get(1)["s"] == "a"
    kt.connect(tmp_path).table("t").write([{**NULLS, "k": 1, "s": "b"}])
    assert table.get(1)["s"] == "b"
    assert pickle.loads(pickle.dumps(table)).get(1)["s"] == "b"


def test_file_that_is_read_often_is_mapped_and_shows_what_it_showed(tmp_path: Path) -> None:
    """Its row groups are too large for the cache, so each lookup would read it."""
    table = kt.connect(tmp_path).create_table(
        "t",
        fields_of("k INT NOT NULL, v STRING"),
        ["k"],
        options={"lookup.cache-max-memory-size": "1 mb"},
    )
    rows = {k: f"{k} " + "x" * 300 for k in range(0, 10_000, 2)}
    table.write([{"k": k, "v": v} for k, v in rows.items()])
    table.write([{"k": 4, "v": "later"}])
    rows[4] = "later"

    def check() -> None:
        for k in (0, 1, 4, 5_000, 9_998, 9_999, -1):
            found = table.get(k)
            assert (found and found["v"]) == rows.get(k)

    def mapped() -> set[str]:
        lookups = point_lookups(table.stored.newest_state(table.table_schema))
        assert lookups is not None
        sections = [s for bucket in lookups.buckets.values() for s in bucket.sections.values()]  # type: ignore[union-attr]
        return {name for s in sections for name, each in s.mapped.items() if each.rows}

    began = time.monotonic()
    while not mapped():
        check()
        assert time.monotonic() - began < 60
    check()
    LOOKUP_FILES.__init__()  # type: ignore[misc]  # as if its time had passed
    check()
    table.write([{"k": 0, "v": "newest"}])
    rows[0] = "newest"
    check()
    table.compact(full=True)
    check()
