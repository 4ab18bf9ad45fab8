"""Postponed buckets: a partition has its own number, and what others left is put into buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.commit.committer import Committed, Committer
from keytide.definition.schema_evolution import SetOption
from keytide.format import paths
from keytide.format.binary_row import encode_rows
from keytide.format.manifest_entry import ManifestEntry
from keytide.snapshot.state import TableView
from keytide.write.bucket_writer import BucketWriter, SequenceBase, restamp
from keytide.write.input_rows import incoming_rows
from keytide.write.layout import BucketBatch
from keytide.write.task import TaskResult
from new_tables import dotted, empty_table
from overtaking import overtaken
from table_rows import lines

SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int32()), ("v", pa.int64())])


def new_table(**more: str) -> kt.Table:
    named = dotted(more)
    options = {"bucket": "-2", "postpone.default-bucket-num": "3", **named}
    return empty_table(SCHEMA, ["p", "k"], ["p"], options=options)


def new_rows(*lines: str) -> pa.Table:
    """Rows of lines such as `1 5 10` or `-D 1 5`: partition, key, value."""
    found = []
    for line in lines:
        kind, *cells = line.split() if line[0] in "+-" else ["+I", *line.split()]
        p, k, v = [int(cell) for cell in [*cells, "0"][:3]]
        found.append({"p": p, "k": k, "v": v, "_row_kind": kind})
    return pa.Table.from_pylist(found, SCHEMA.append(pa.field("_row_kind", pa.string())))


def leave(table: kt.Table, *lines: str) -> None:
    """Leave rows of one partition in no bucket, as a streaming job of another engine does."""
    scan = table.scan()
    view: TableView = scan.view
    frame = incoming_rows(new_rows(*lines), view.schema, view.options, view.name).frame
    values = frame["p"].head(1).to_arrow().cast(pa.int32())
    (partition,) = encode_rows([values], [f.type for f in view.schema.partition_fields()])
    bucket = (partition, paths.POSTPONE_BUCKET)
    batch = BucketBatch((bucket,), np.array([frame.height]), frame)
    writer = BucketWriter(view, lambda _: paths.POSTPONE_BUCKET)
    made = writer.write([batch], SequenceBase.after(scan.live))
    committer = Committer(table.metadata, view, restamp)
    outcome = committer.publish(Change(TaskResult(made.data), Author.fresh()), scan.live)
    assert isinstance(outcome, Committed)


def entries(table: kt.Table) -> list[ManifestEntry]:
    return list(table.scan().live.entries)


def test_partition_gets_its_number_of_buckets_when_it_is_first_written() -> None:
    table = new_table()
    table.write(new_rows(*(f"1 {k} {k}" for k in range(20))))
    table.alter(SetOption("postpone.default-bucket-num", "5"))
    table.write(new_rows(*(f"{p} {k} {k + 1}" for k in range(20) for p in (1, 2))))
    totals = {(e.partition, e.total_buckets) for e in entries(table)}
    assert sorted(total for _, total in totals) == [3, 5]
    assert lines(table) == sorted(f"{p} {k} {k + 1}" for k in range(20) for p in (1, 2))
    assert table.get({"p": 1, "k": 7}) == {"p": 1, "k": 7, "v": 8}
    assert table.verify().is_healthy


def test_rows_that_are_in_no_bucket_are_not_shown_before_a_compaction_places_them() -> None:
    table = new_table()
    table.write(new_rows("1 1 1", "1 2 2"))
    leave(table, "1 1 10", "-D 1 2", "1 3 30")
    assert lines(table) == ["1 1 1", "1 2 2"]
    assert table.compact(dry_run=True).files_before == 1
    done = table.compact()
    assert done.snapshot_id == 3
    assert lines(table) == ["1 1 10", "1 3 30"]
    assert {e.bucket for e in entries(table)} <= {0, 1, 2}
    assert table.compact().snapshot_id is None


def test_write_places_first_what_came_before_it() -> None:
    table = new_table()
    table.write(new_rows("1 1 1"))
    leave(table, "1 1 10", "1 2 20")
    leave(table, "1 2 21")
    table.write(new_rows("1 1 100"))
    assert lines(table) == ["1 1 100", "1 2 21"]


def test_compaction_that_another_one_overtakes_places_nothing_twice() -> None:
    table = new_table(merge_engine="aggregation", fields__v__aggregate_function="sum")
    table.write(new_rows("1 1 1"))
    leave(table, "1 1 10")
    overtaken(table, lambda: table.compact()).compact(full=True)
    assert lines(table) == ["1 1 11"]


def test_option_that_would_hide_rows_is_refused() -> None:
    with pytest.raises(kt.UnsupportedError, match="invisible until a compaction"):
        new_table(postpone__batch_write_fixed_bucket="false")


def test_overwritten_partition_has_the_default_number_again() -> None:
    table = new_table()
    table.write(new_rows("1 1 1"))
    table.alter(SetOption("postpone.default-bucket-num", "2"))
    table.overwrite(new_rows("1 4 4"), {"p": 1})
    assert {e.total_buckets for e in entries(table)} == {2}
    assert lines(table) == ["1 4 4"]


step = st.tuples(
    st.sampled_from(["write", "leave", "compact", "full"]),
    st.lists(st.tuples(st.sampled_from(["+I", "-D"]), st.integers(0, 4), st.integers(0, 9)),
             min_size=1, max_size=4),
)  # fmt: skip


@pytest.mark.takes_turns
@given(steps=st.lists(step, max_size=6))
def test_any_history_gives_the_rows_of_a_dict(steps: list[Any]) -> None:
    table = new_table()
    table.write(new_rows("1 0 0"))
    oracle = {0: 0}
    for doing, changes in [*steps, ("compact", [])]:
        texts = [f"{kind} 1 {k} {v}" for kind, k, v in changes]
        if doing in ("compact", "full"):
            table.compact(full=doing == "full")
            continue
        table.write(new_rows(*texts)) if doing == "write" else leave(table, *texts)
        for kind, k, v in changes:
            oracle.pop(k, None)
            oracle |= {k: v} if kind == "+I" else {}
    assert lines(table) == sorted(f"1 {k} {v}" for k, v in oracle.items())
