"""What follows a change: every verb that commits tells the one host, and so all followers."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pytest

import keytide as kt
from keytide.format import paths
from keytide.format.checksum import DOCUMENT_SEAL, SEAL_KEY, UNSEALED
from keytide.maintenance import background
from keytide.maintenance.background import FollowUp, TableChange

ROWS = [{"k": 1, "p": "2020-01-01", "v": 1}, {"k": 2, "p": "2020-01-02", "v": 2}]
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.int64())])
OPTIONS = {"bucket": "1", "partition.timestamp-formatter": "yyyy-MM-dd"}


@dataclass
class Publisher:
    """A follower of another kind: it tells a place outside which snapshot is the newest."""

    told: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, made: TableChange) -> None:
        self.told.append((made.table.uri, made.newest_id))


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """Follows every change from now on; it comes last, so it is told of what the others did."""
    found = Publisher()
    follower = FollowUp("publishing", "CALL sys.tell", found, is_upkeep=False)
    monkeypatch.setattr(background, "FOLLOW_UPS", [*background.FOLLOW_UPS, follower])
    return found


@dataclass
class Verb:
    """Does something to a table, `t`, after which it has another newest snapshot."""

    do: Callable[[kt.Lake, kt.Table], object]
    has_key: bool = True
    options: dict[str, str] = field(default_factory=dict)


def forward(lake: kt.Lake, t: kt.Table) -> None:
    t.create_branch("b")
    t.branch("b").write(ROWS)
    t.fast_forward("b")


def rescaled(lake: kt.Lake, t: kt.Table) -> None:
    lake.sql("ALTER TABLE t SET ('bucket' = '2')")
    t.rescale()


def converted(lake: kt.Lake, t: kt.Table) -> None:
    t.convert("none" if "upsert.mode" in t.options else "full")


def indexed(lake: kt.Lake, t: kt.Table) -> None:
    lake.sql("ALTER TABLE t SET ('file-index.bloom-filter.columns' = 'v')")
    t.rewrite_file_index()


def mended(lake: kt.Lake, t: kt.Table) -> None:
    store, path = t.metadata.store, paths.snapshot_path(t.metadata.latest_snapshot_id() or 0)
    document = {**json.loads(store.read(path)), "operation": "COMPACT", SEAL_KEY: UNSEALED}
    text = json.dumps(document, separators=(", ", " : "))
    store.put(path, DOCUMENT_SEAL.set(text.encode()))
    t.mend_snapshots()


def rolled_back(lake: kt.Lake, t: kt.Table) -> None:
    t.rollback_to(1)


def merged(lake: kt.Lake, t: kt.Table) -> None:
    t.merge(ROWS[:1], "target.k = source.k").when_matched_update({"v": "7"}).execute()


VERBS = {
    "write": Verb(lambda lake, t: t.write(ROWS)),
    "write of a stream": Verb(
        lambda lake, t: t.write(ROWS, commit_user="stream", commit_identifier=7)
    ),
    "write that is compacted": Verb(
        lambda lake, t: t.write(ROWS), options={"num-sorted-run.compaction-trigger": "2"}
    ),
    "write where all is written only": Verb(
        lambda lake, t: t.write(ROWS), options={"write-only": "true"}
    ),
    "overwrite": Verb(lambda lake, t: t.overwrite(ROWS)),
    "truncate": Verb(lambda lake, t: t.truncate()),
    "delete": Verb(lambda lake, t: t.delete("k = 1")),
    "delete without a key": Verb(lambda lake, t: t.delete("k = 1"), has_key=False),
    "update": Verb(lambda lake, t: t.update({"v": "9"}, "k = 1")),
    "update without a key": Verb(lambda lake, t: t.update({"v": "9"}, "k = 1"), has_key=False),
    "merge": Verb(merged),
    "INSERT": Verb(lambda lake, t: lake.sql("INSERT INTO t VALUES (5, '2020-01-01', 5)")),
    "INSERT OVERWRITE": Verb(
        lambda lake, t: lake.sql("INSERT OVERWRITE t VALUES (5, '2020-01-01', 5)")
    ),
    "CREATE TABLE AS": Verb(lambda lake, t: lake.sql("CREATE TABLE t2 AS SELECT * FROM t")),
    "compact": Verb(lambda lake, t: t.compact(full=True)),
    "compact without a key": Verb(lambda lake, t: t.compact(full=True), has_key=False),
    "compact in order": Verb(lambda lake, t: t.compact(order_by=["v"]), has_key=False),
    "compact where all is written only": Verb(
        lambda lake, t: t.compact(full=True), options={"write-only": "true"}
    ),
    "compact_manifest": Verb(lambda lake, t: lake.sql("CALL sys.compact_manifest('t')")),
    "restore": Verb(lambda lake, t: t.restore(1)),
    "rollback_to": Verb(rolled_back),
    "fast_forward": Verb(forward),
    "rescale": Verb(rescaled),
    "convert": Verb(converted),
    "rewrite_file_index": Verb(indexed),
    "expire_partitions": Verb(lambda lake, t: t.expire_partitions(timedelta(days=1))),
    "purge_files": Verb(lambda lake, t: t.purge_files()),
    "mend_snapshots": Verb(mended),
}

OF_NO_COMMIT = {
    "add_constraint", "alter", "attach", "branch", "branches", "changes", "clear_consumers",
    "close", "consumers", "create_branch", "create_tag", "delete_branch", "delete_tag", "doctor",
    "drop_constraint", "expire_changelogs", "expire_consumers", "expire_snapshots", "expire_tags",
    "follow", "get", "get_many", "history", "kafka_lag", "of", "plot", "publish",
    "remove_orphan_files", "rename_branch", "rename_tag", "replace_tag", "reset_consumer", "scan",
    "snapshots", "tags", "verify", "why",
}  # fmt: skip
"""Methods of a table that leave the newest snapshot as it is."""


@pytest.mark.one_in(14)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_change_is_told_to_every_follower(
    verb: Verb, tmp_path: object, publisher: Publisher
) -> None:
    lake = kt.connect(str(tmp_path))
    key = ["k", "p"] if verb.has_key else []
    options = {**(OPTIONS if verb.has_key else {}), **verb.options}
    t = lake.create_table("t", SCHEMA, key, ["p"], options=options)
    for number in range(3):
        t.write([{**row, "v": number} for row in ROWS])
    before = {name: newest(lake, name) for name in lake.tables()}
    publisher.told.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verb.do(lake, t)
    after = {name: newest(lake, name) for name in lake.tables()}
    changed = {name: place for name, place in after.items() if place != before.get(name)}
    assert changed, "the verb is to change something"
    last = dict(publisher.told)
    assert {place[0]: place[1] for place in changed.values()} == {
        uri: last.get(uri) for uri, _ in changed.values()
    }


def newest(lake: kt.Lake, name: str) -> tuple[str, int | None]:
    t = lake.table(name)
    return t.uri, t.metadata.latest_snapshot_id()


def test_every_method_of_a_table_is_a_verb_or_makes_no_commit() -> None:
    methods = {
        name
        for name, found in inspect.getmembers(kt.Table)
        if not name.startswith("_") and (inspect.isfunction(found) or inspect.ismethod(found))
    }
    assert methods - {*VERBS} - OF_NO_COMMIT == set()


def test_follower_that_fails_is_a_warning_and_the_others_follow(
    tmp_path: object, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(made: TableChange) -> None:
        raise OSError("it is away")

    failing = FollowUp("publishing elsewhere", "CALL sys.publish", fail)
    monkeypatch.setattr(background, "FOLLOW_UPS", [failing, *background.FOLLOW_UPS])
    t = kt.connect(str(tmp_path)).create_table("t", SCHEMA, ["k", "p"], ["p"])
    with pytest.warns(kt.KeytideWarning, match="the rows are written, but publishing elsewhere"):
        t.write(ROWS)
    assert [number for _, number in publisher.told] == [1]


def test_compaction_that_a_statement_begins_with_is_told_to_every_follower(
    tmp_path: object, publisher: Publisher
) -> None:
    options = {"deletion-vectors.enabled": "true"}
    t = kt.connect(str(tmp_path)).create_table("t", SCHEMA, ["k", "p"], options=options)
    t.write(ROWS)
    t.rollback_to(1)
    publisher.told.clear()
    t.delete("k = 99")
    assert t.metadata.latest_snapshot_id() == 2, "its rows were not shown before"
    assert publisher.told == [(t.uri, 2)]


def test_restored_partition_is_compacted_where_its_runs_are_too_many(tmp_path: object) -> None:
    options = {"num-sorted-run.compaction-trigger": "3", "write-only": "true"}
    lake = kt.connect(str(tmp_path))
    t = lake.create_table("t", SCHEMA, ["k", "p"], options=options)
    for number in range(6):
        t.write([{**ROWS[0], "v": number}])
    t.compact(full=True)
    lake.sql("ALTER TABLE t SET ('write-only' = 'false')")
    done = t.restore(6)
    t.close()
    assert t.scan().to_pylist() == [{**ROWS[0], "v": 5}]
    assert t.metadata.latest_snapshot_id() == (done.snapshot_id or 0) + 1
    assert t.scan().explain().files_raw == 1


def test_rollback_leaves_the_upkeep_to_the_next_write(tmp_path: object) -> None:
    options = {
        "partition.expiration-time": "1 d", "partition.timestamp-formatter": "yyyy-MM-dd",
        "partition.expiration-check-interval": "0 s", "write-only": "true",
    }  # fmt: skip
    lake = kt.connect(str(tmp_path))
    t = lake.create_table("t", SCHEMA, ["k", "p"], ["p"], options=options)
    for _ in range(2):
        t.write(ROWS)
    lake.sql("ALTER TABLE t SET ('write-only' = 'false')")
    t.rollback_to(1)
    assert t.metadata.latest_snapshot_id() == 1
    assert t.scan().count() == 2
