"""Versions dealt out by key, sorted out in several places, and put together again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.sources.shuffle import (
    ShuffleTask,
    TiedRowsTask,
    outcome_rows,
    read_outcomes,
    shuffled_frames,
)
from keytide.sources.version_merge import SourceMerge, split_condition

SCHEMA = pa.schema([("k", pa.float64()), ("w", pa.int32()), ("d", pa.bool_()), ("v", pa.string())])
PLACES = 3
VERSIONS = st.lists(
    st.tuples(
        st.sampled_from([None, 0.0, -0.0, 1.0, math.nan]),
        st.integers(0, 2) | st.none(),
        st.sampled_from([None, False, True]),
        st.sampled_from("ab") | st.none(),
    ),
    max_size=6,
)


def folder_of(path: Path, files: Iterable[list[tuple[Any, ...]]]) -> Path:
    path.mkdir()
    for number, rows in enumerate(files):
        table = pa.Table.from_pylist(
            [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
        )
        pq.write_table(table, path / f"{number}.parquet", row_group_size=2)
    return path


def external(path: Path, policy: str | None = None) -> kt.ExternalTable:
    return kt.connect(path / "lake").create_external_table(
        "e",
        format="parquet",
        location=str(path / "theirs"),
        primary_key=["k"],
        watermark_key=["w"],
        tombstone_key="d",
        options={} if policy is None else {"upsert.on-tie": policy},
    )


def in_places(dealt: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """What an engine does with rows whose first column says where they belong."""
    places: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for batch in dealt:
        for row in range(batch.num_rows):
            places[batch.column(0)[row].as_py()].append(batch.slice(row, 1))
    return iter(places.values())


def put_together(table: kt.ExternalTable, memory: int, where: str | None = None) -> list[Any]:
    """The rows of a table by way of several places, as a cluster would do it."""
    scan = table.scan(where=where)
    about_key, rest = split_condition(scan.predicate, ("k",))
    versions = scan.table.versions(about_key)
    merging = SourceMerge(versions, table.schema.names, rest, compares_rows=True)
    deal = [
        ShuffleTask(versions.by_place().some([part]), merging.columns_deciding, PLACES, 2)
        for part in range(len(versions.parts))
    ]
    found = [
        told
        for place in in_places(batch for task in deal for batch in task.batches())
        for told in outcome_rows(
            merging.by_freshness, versions.numbers, shuffled_frames(place), memory
        )
    ]
    read = TiedRowsTask(versions, PLACES, 2).batches(found)
    tied = [
        merging.shown.of(rows)
        for place in in_places(read)
        for rows in merging.by_key.merged(shuffled_frames(place), memory, lambda *_: 2, [])
    ]
    by_part = read_outcomes(found)
    alone = []
    for place, part in enumerate(versions.parts):
        rows = pq.read_table(table.location + "/" + str(part))
        away = by_part.get(place)
        gone = [] if away is None else np.concatenate([away.lost, away.tied])
        alone.append(rows.take(np.setdiff1d(np.arange(rows.num_rows), gone)))
    return listed(pa.concat_tables([*alone, *(rows.to_arrow().cast(SCHEMA) for rows in tied)]))


def listed(rows: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)


@settings(max_examples=15, deadline=None)
@given(st.lists(VERSIONS, min_size=1, max_size=4), st.sampled_from([64, 1 << 20]))
def test_sorted_out_in_places_versions_become_the_rows_that_one_reader_makes(
    tmp_path_factory: pytest.TempPathFactory, files: list[Any], memory: int
) -> None:
    path = tmp_path_factory.mktemp("dealt")
    folder_of(path / "theirs", files)
    table = external(path)
    expected = listed(table.scan().to_arrow().cast(SCHEMA))
    assert [unsigned(row) for row in put_together(table, memory)] == [
        unsigned(row) for row in expected
    ]


def unsigned(row: tuple[Any, ...]) -> str:
    """A row in which zeros are alike, which of equal ones is stored is all the same."""
    return repr((row[0] + 0.0 if row[0] is not None else None, *row[1:]))


def test_versions_that_tie_are_an_error_where_the_definition_says_so(tmp_path: Path) -> None:
    folder_of(tmp_path / "theirs", [[(1.0, 1, None, "a"), (2.0, 1, None, "b")]])
    table = external(tmp_path, "error")
    assert len(put_together(table, 1 << 20)) == 2
    pq.write_table(
        pa.table([[2.0], [1], [True], ["c"]], schema=SCHEMA), tmp_path / "theirs/9.parquet"
    )
    with pytest.raises(kt.InvalidError, match=r"key k = 2\.0"):
        put_together(table, 1 << 20)


def test_more_versions_of_a_key_than_memory_holds_are_sorted_out(tmp_path: Path) -> None:
    folder_of(tmp_path / "theirs", [[(7.0, n, None, f"{n}") for n in range(50)]])
    assert put_together(external(tmp_path), 64) == [(7.0, 49, None, "49")]
