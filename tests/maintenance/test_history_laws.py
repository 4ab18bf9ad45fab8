"""Any order of writes, compactions, tags, branches, rollbacks and expiries: what is kept of a
table's history shows what it showed when it was made, and no file is left that nobody names."""

from __future__ import annotations

import time
from typing import Any

import behind_writers
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from histories import every_snapshot, put_branch, put_consumer, rows_at, stray_files
from keytide.format.snapshot import CommitKind
from new_tables import empty_table
from table_rows import snapshot_ids

SCHEMA = pa.schema([("p", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
KEY = st.integers(0, 5)
KINDS = ("+I", "+U", "-D")
OPTIONS = st.sampled_from(
    [
        {},
        {"bucket": "2", "changelog-producer": "input"},
        {"bucket": "-1", "dynamic-bucket.target-row-num": "2"},
        {"write-only": "true", "manifest.merge-min-count": "2"},
        {"changelog.num-retained.min": "20", "snapshot.num-retained.min": "3"},
        {"snapshot.num-retained.min": "2", "snapshot.num-retained.max": "4"},
        {"num-sorted-run.compaction-trigger": "2", "file-index.bloom-filter.columns": "v"},
    ]
)
Rows = list[tuple[Any, ...]]


class History(RuleBasedStateMachine):
    """A table beside a dict of what it has to hold, by the identity of each snapshot."""

    @initialize(options=OPTIONS)
    def begin(self, options: dict[str, str]) -> None:
        options = behind_writers.OFTEN | options
        self.table = empty_table(SCHEMA, ["p", "k"], ["p"], options=options)
        self.store = self.table.stored.store
        self.now: dict[int, int] = {}
        self.shown: dict[str | None, Rows] = {}
        self.names = 0

    # -- what happens -----------------------------------------------------------------------------

    @rule(changes=st.lists(st.tuples(KEY, st.sampled_from(KINDS)), min_size=1, max_size=4),
          value=st.integers(0, 99))  # fmt: skip
    def write(self, changes: list[tuple[int, str]], value: int) -> None:
        rows = [{"p": k % 2, "k": k, "v": value, "_row_kind": kind} for k, kind in changes]
        self.table.write(rows)
        for k, kind in changes:
            self.now.pop(k, None)
            if kind != "-D":
                self.now[k] = value
        self.note()

    @rule(k=KEY, value=st.integers(0, 99))
    def overwrite(self, k: int, value: int) -> None:
        self.table.overwrite([{"p": k % 2, "k": k, "v": value}], {"p": k % 2})
        self.now = {each: v for each, v in self.now.items() if each % 2 != k % 2} | {k: value}
        self.note()

    @rule(full=st.booleans())
    def compact(self, full: bool) -> None:
        self.table.compact(full=full)
        self.note()

    @precondition(lambda self: snapshot_ids(self.table))
    @rule(pick=st.integers(0, 99))
    def tag(self, pick: int) -> None:
        self.names += 1
        self.table.create_tag(f"t{self.names}", self.picked(pick))

    @precondition(lambda self: self.table.tags())
    @rule(pick=st.integers(0, 99))
    def drop_tag(self, pick: int) -> None:
        tags = self.table.tags()
        self.table.delete_tag(tags[pick % len(tags)].name)

    @precondition(lambda self: snapshot_ids(self.table))
    @rule(pick=st.integers(0, 99))
    def branch(self, pick: int) -> None:
        self.names += 1
        put_branch(self.table, f"b{self.names}", self.picked(pick))

    @precondition(lambda self: snapshot_ids(self.table))
    @rule(pick=st.integers(0, 99))
    def roll_back(self, pick: int) -> None:
        number = self.picked(pick)
        snapshot = self.table.metadata.snapshot(number)
        self.table.rollback_to(number)
        self.now = {row[1]: row[2] for row in self.shown[snapshot.uuid]}

    @precondition(lambda self: self.table.tags())
    @rule(pick=st.integers(0, 99))
    def roll_back_to_tag(self, pick: int) -> None:
        tags = self.table.tags()
        tag = tags[pick % len(tags)]
        if tag.snapshot_id <= max(snapshot_ids(self.table)):
            self.table.rollback_to(tag.name)
            self.now = {row[1]: row[2] for row in self.shown[tag.snapshot.uuid]}

    @precondition(lambda self: snapshot_ids(self.table))
    @rule(pick=st.integers(0, 99))
    def consume(self, pick: int) -> None:
        put_consumer(self.table, "reader", self.picked(pick))

    @rule(most=st.integers(1, 5))
    def expire(self, most: int) -> None:
        self.table.expire_snapshots(most)
        self.check_history()

    @rule()
    def clean(self) -> None:
        self.remove_orphan_files()
        self.table.close()
        self.remove_orphan_files()
        assert stray_files(self.store) == set()
        self.check_history()

    def remove_orphan_files(self) -> None:
        time.sleep(0.002)
        self.table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)

    def picked(self, pick: int) -> int:
        self.note()
        there = [each.id for each in self.table.snapshots() if each.uuid in self.shown]
        return there[pick % len(there)]

    def note(self) -> None:
        rows = sorted((k % 2, k, v) for k, v in self.now.items())
        before = None
        for snapshot in self.table.snapshots():
            # One that ran behind a writer has come some time after what it compacted.
            is_compaction = snapshot.commit_kind is CommitKind.COMPACT
            before = self.shown.get(snapshot.uuid, before if is_compaction else rows)
            if before is not None:
                self.shown[snapshot.uuid] = before

    # -- what holds -------------------------------------------------------------------------------

    @invariant()
    def newest_shows_the_newest(self) -> None:
        shown = sorted((row["p"], row["k"], row["v"]) for row in self.table.scan().to_pylist())
        assert shown == sorted((k % 2, k, v) for k, v in self.now.items())

    def check_history(self) -> None:
        self.note()
        for path, snapshot in every_snapshot(self.store):
            if snapshot.commit_kind is CommitKind.COMPACT and snapshot.uuid not in self.shown:
                continue  # it came this moment
            assert rows_at(self.table, snapshot) == self.shown[snapshot.uuid], path

    def teardown(self) -> None:
        self.clean()
        found = self.table.verify(quick=True).findings
        # Readers may have been rolled back over, or expiry may find them far behind.
        assert [each for each in found if "consumer" not in each.path] == []


class TestHistory(History.TestCase):
    settings = settings(max_examples=4, stateful_step_count=16)


@pytest.mark.soak
class TestLongHistory(History.TestCase):
    settings = settings(max_examples=100, stateful_step_count=40)
