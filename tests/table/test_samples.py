"""Tables that other writers of the format made stay readable, with the rows they had."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from json_values import arrow_table, rows_as_text
from table_rows import rows_in_order

SAMPLES = Path(__file__).parents[1] / "data/samples"
EXPECTED = {
    path.stem: json.loads(path.read_text()) for path in sorted(SAMPLES.rglob("expected/*.json"))
}
# Readers of these see compacted files only, so a compaction does change what they show.
SHOWS_ONLY_COMPACTED = ("dv", "m_dv", "j_dv", "j_first")


def open_sample(name: str) -> kt.Table:
    return kt.open_table(SAMPLES / EXPECTED[name]["table"])


def expected_text(table: kt.Table, rows: list[dict[str, Any]]) -> list[str]:
    fields = table.table_schema.fields
    names = [f.name for f in fields]
    values = [[row[name] for name in names] for row in rows]
    return rows_as_text(arrow_table(values, names, [f.type for f in fields]))


def test_samples_are_found_in_their_warehouses() -> None:
    found = [
        f"{warehouse}/{name}"
        for warehouse in ("wh", "java-0.9/wh", "independent/wh")
        for name in kt.connect(SAMPLES / warehouse).tables("spec")
    ]
    expected = [each["table"].replace("spec.db/", "spec.") for each in EXPECTED.values()]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("name", EXPECTED)
def test_sample_reads_as_its_writer_reads_it(name: str) -> None:
    table = open_sample(name)
    rows = table.scan().to_arrow()
    assert rows_as_text(rows) == expected_text(table, EXPECTED[name]["rows"])
    assert rows.schema == table.schema


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", EXPECTED)
def test_batches_and_count_of_sample_agree_with_its_rows(name: str) -> None:
    scan = open_sample(name).scan()
    batched = pa.Table.from_batches(scan.to_batches(), schema=scan.schema)
    assert rows_as_text(batched) == rows_as_text(scan.to_arrow())
    assert scan.count() == EXPECTED[name]["row_count"]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_single_column_of_sample_has_all_rows(name: str) -> None:
    table = open_sample(name)
    whole = table.scan().to_arrow()
    for column in whole.column_names:
        alone = table.scan(columns=[column]).to_arrow()
        assert rows_as_text(alone) == rows_as_text(whole.select([column]))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_row_of_sample_is_found_by_its_key(name: str) -> None:
    table = open_sample(name)
    keys = table.scan().to_arrow().select(table.primary_key).to_pylist()
    found = [table.get(key) for key in keys]
    assert [row and {column: row[column] for column in table.primary_key} for row in found] == keys


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_snapshot_of_sample_can_be_read(name: str) -> None:
    table = open_sample(name)
    ids = [snapshot.id for snapshot in table.snapshots()]
    rows = {number: rows_as_text(table.scan(snapshot_id=number).to_arrow()) for number in ids}
    assert rows[ids[-1]] == rows_as_text(table.scan().to_arrow())
    if name not in SHOWS_ONLY_COMPACTED:
        changed = [
            after.id
            for before, after in itertools.pairwise(table.snapshots())
            if after.commit_kind == "COMPACT" and rows[before.id] != rows[after.id]
        ]
        assert changed == []


def test_tags_keep_the_rows_of_their_snapshots() -> None:
    table = open_sample("j_dedup")
    for tag in ("t1", "t2"):
        snapshot = table.metadata.tag(tag)
        by_id = table.scan(snapshot_id=snapshot.id).to_arrow()
        assert table.scan(tag=tag).to_arrow() == by_id
        assert by_id.num_rows > 0


def test_time_travel_finds_the_snapshot_that_was_newest() -> None:
    table = open_sample("j_dedup")
    for earlier, later in itertools.pairwise(table.snapshots()):
        assert table.scan(as_of=later.time_millis - 1).snapshot == earlier
        assert table.scan(as_of=later.time_millis).snapshot == later


def test_snapshots_before_an_evolution_keep_their_columns_and_values() -> None:
    table = open_sample("j_evolve")
    assert rows_in_order(table.scan(snapshot_id=1)) == [
        (1, 10, "b1"),
        (2, 20, "b2"),
    ]
    second = table.scan(snapshot_id=2)
    assert second.schema.names == ["id", "a", "b_new", "c"]
    assert rows_in_order(second) == [
        (1, 10, "b1", None),
        (2, 200, "b2x", 2.5),
        (3, 30_000_000_000, "b3", 3.5),
    ]
