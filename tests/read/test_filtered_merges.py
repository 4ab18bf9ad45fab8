"""Conditions on merged rows that are asked of the largest run while it is read."""

from __future__ import annotations

from uuid import uuid4

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.read.runs import StoredVersions

ENGINES = {
    "deduplicate": {},
    "sequence": {"sequence.field": "n"},
    "partial-update": {"merge-engine": "partial-update"},
    "aggregation": {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
    "first-row": {"merge-engine": "first-row"},
    "merge on read": {
        "deletion-vectors.enabled": "true",
        "deletion-vectors.merge-on-read": "true",
    },
}
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        ("v", pa.int64()),
        ("n", pa.int64()),
    ]
)
ROW = st.tuples(
    st.integers(0, 30), st.sampled_from("ab"), st.none() | st.integers(0, 3), st.integers(0, 9)
)
BATCH = st.lists(ROW, max_size=6, unique_by=lambda row: row[:2])
WHERE = {
    "v = 1": pl.col("v") == 1,
    "v IS NULL": pl.col("v").is_null(),
    "v >= 2 AND k < 20": (pl.col("v") >= 2) & (pl.col("k") < 20),
    "v != 0 OR n = 3": (pl.col("v") != 0) | (pl.col("n") == 3),
    "NOT (v = 1) AND s = 'a'": (pl.col("v") != 1) & (pl.col("s") == "a"),
}


def table(rows: list[tuple[int, str, int | None, int]]) -> pa.Table:
    return pa.table(dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True)), SCHEMA)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=12, deadline=None)
@given(
    later=st.lists(BATCH, min_size=1, max_size=3),
    gone=st.booleans(),
    where=st.sampled_from(sorted(WHERE)),
    key=st.sampled_from([["k"], ["k", "s"]]),
)
def test_filtered_scan_is_the_whole_one_filtered(
    engine: str,
    later: list[list[tuple[int, str, int | None, int]]],
    gone: bool,
    where: str,
    key: list[str],
) -> None:
    lake = kt.connect(f"memory://{uuid4().hex}")
    options = {**ENGINES[engine], "bucket": "1", "write-only": "true"}
    t = lake.create_table("t", SCHEMA, key, options=options)
    t.write(table([(k, "a", k % 4, 5) for k in range(24)]))
    if engine != "first-row":
        t.compact(full=True)
    for rows in later:
        if rows:
            t.write(table(list({tuple(r[: len(key)]): r for r in rows}.values())))
    if gone and engine in ("deduplicate", "merge on read"):
        t.delete("k IN (3, 4, 5)")

    whole = pl.DataFrame(t.scan().to_arrow()).filter(WHERE[where])
    found = pl.DataFrame(t.scan(where=where).to_arrow())
    assert found.sort(SCHEMA.names).equals(whole.sort(SCHEMA.names))
    assert pl.DataFrame(t.scan(["n"], where).to_arrow()).height == whole.height


def test_rows_that_no_other_run_touches_are_left_out_while_they_are_read(
    lake: kt.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = lake.create_table("t", SCHEMA, ["k"], options={"write-only": "true"})
    t.write(table([(k, "a", k % 100, 0) for k in range(10_000)]))
    t.compact(full=True)
    t.write(table([(5, "b", 1, 0), (101, "b", 0, 0)]))
    read: list[int] = []
    of_run = StoredVersions.of_run

    def counted(self: StoredVersions, *arguments: object) -> object:
        for batch in of_run(self, *arguments):  # type: ignore[arg-type]
            read.append(batch.rows.height)
            yield batch

    monkeypatch.setattr(StoredVersions, "of_run", counted)
    assert t.scan(["k"], "v = 1").to_arrow().num_rows == 100
    assert sum(read) == 2 + 101  # those with 1, of which one is outlived, and 5
