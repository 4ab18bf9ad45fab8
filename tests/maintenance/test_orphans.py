"""Orphan files: what nothing names goes, and nothing else, whoever writes meanwhile."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from copies import copies_of
from histories import put_branch, put_tag, stray_files, torn_snapshots
from keytide.format import paths
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import empty_store, table_in

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.string())])


@copies_of
def with_orphans(store: Store) -> None:
    """What a writer and an expiry left that died, a dropped tag, and a rollback."""
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["p", "k"], ["p"])
    for value in range(4):
        table.write([{"p": "a=b", "k": k, "v": f"{value}"} for k in range(3)])
    put_tag(table, "two", 2)
    put_branch(table, "three", 3)
    put_tag(table, "dropped", 1)
    table.expire_snapshots(1)
    table.stored.store.delete([paths.tag_path("dropped")])
    table.write([{"p": "c", "k": 1, "v": "later"}])
    table.rollback_to(4)
    faulty = FaultyStore(store, [Fault("create", "*/snapshot-5", action="crash")])
    with suppress(Crash):
        table_in(faulty).write([{"p": "d", "k": 1, "v": "dead"}])


def now_ms() -> int:
    """A time by which all that is there has been written."""
    time.sleep(0.003)
    return time.time_ns() // 1_000_000


def test_orphans_are_told_first_and_then_go() -> None:
    table = table_in(with_orphans())
    store = table.stored.store
    strays, before = stray_files(store), {f.path: f.size for f in store.list()}
    assert len(strays) > 8
    moment = now_ms()
    told = table.remove_orphan_files(moment)
    assert (set(told.paths), told.deleted) == (strays, False)
    assert (told.files, told.bytes) == (len(strays), sum(before[path] for path in strays))
    assert {f.path for f in store.list()} == before.keys()
    done = table.remove_orphan_files(moment, dry_run=False)
    assert (done.paths, done.deleted) == (told.paths, True)
    assert {f.path for f in store.list()} == before.keys() - strays
    assert torn_snapshots(store) == set()
    assert table.verify().is_healthy
    assert table.remove_orphan_files(moment) == kt.OrphanFiles(0, 0, deleted=False, paths=())


def test_young_files_stay() -> None:
    table = table_in(with_orphans())
    assert table.remove_orphan_files(dry_run=False).files == 0
    assert stray_files(table.stored.store)


def test_time_to_come_is_refused() -> None:
    table = table_in(with_orphans())
    with pytest.raises(
        kt.InvalidError, match=r"older_than is .* s in the future, so files of running"
    ):
        table.remove_orphan_files("2999-01-01")
    with pytest.raises(kt.InvalidError, match="older_than is 'soon', which is not an ISO time"):
        table.remove_orphan_files("soon")


def test_only_what_has_a_place_in_the_table_goes() -> None:
    store = with_orphans().sub("default.db/t")
    left = [
        "notes.txt", "mine/bucket-0/x.parquet", "p=a/x.parquet", "p=a/q=b/bucket-0/x.parquet",
        "p=a/bucket-x/x.parquet", "snapshot/mine", "schema/schema-x", "schema/mine.tmp",
        "manifest/deeper/x", "branch/branch-three/manifest/x", "consumer/mine", "tag/mine",
        "q=a/bucket-0/x.parquet",
    ]  # fmt: skip
    gone = [
        "manifest/x", "index/x", "statistics/x", "p=a/bucket-0/x.parquet", "p=a/bucket-postpone/x",
        "snapshot/.snapshot-9.0.tmp", "schema/.schema-9.0.tmp", "snapshot/expiring-9",
        "branch/branch-three/tag/.tag-a.0.tmp",
    ]  # fmt: skip
    for path in (*left, *gone):
        store.put(path, b"x")
    table = kt.Table(store, "t")
    strays = stray_files(store) - {*left}
    assert strays - {*gone} | {*gone} == {*table.remove_orphan_files(now_ms()).paths}


def test_folder_of_its_own_for_data_is_looked_into() -> None:
    store = empty_store()
    options = {"data-file.path-directory": "data/files"}
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=options)
    table.write([{"p": "a", "k": 1, "v": "x"}])
    inside = table.stored.store
    for path in (
        "data/files/bucket-0/x.parquet",
        "bucket-0/x.parquet",
        "data/x/bucket-0/x.parquet",
    ):
        inside.put(path, b"x")
    assert table.remove_orphan_files(now_ms()).paths == ("data/files/bucket-0/x.parquet",)


@pytest.mark.parametrize("producer", ["none", "input"])
def test_changelogs_that_outlive_their_snapshots_keep_what_they_tell(producer: str) -> None:
    store = empty_store()
    options = {"changelog-producer": producer, "write-only": "true"}
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=options)
    for value in range(3):
        table.write([{"p": "a", "k": 1, "v": f"{value}"}])
    table.compact(full=True)
    inside, first = table.stored.store, table.metadata.snapshot(2)
    inside.put(paths.changelog_path(2), first.to_json())
    inside.delete(map(paths.snapshot_path, (1, 2, 3)))
    table.remove_orphan_files(now_ms(), dry_run=False)
    mode = "delta" if producer == "none" else "changelog"
    told = table.metadata.snapshot_or_changelog(2)
    assert told == first
    metadata = table.metadata
    name = told.delta_manifest_list if producer == "none" else told.changelog_manifest_list
    assert name is not None
    entries = metadata.entries(metadata.manifest_list(name))
    files = {path for entry in entries for path in table.scan().view.stored_paths(entry)}
    assert files <= {f.path for f in inside.list()}, mode


@pytest.mark.takes_turns
@pytest.mark.parametrize("action", ["crash", "fail", "lost-response"])
def test_cleaning_that_dies_has_deleted_orphans_only_and_the_next_one_goes_on(action: Any) -> None:
    moment = None
    for nth in range(1, 12):
        store = with_orphans()
        moment = now_ms()
        faulty = FaultyStore(store, [Fault("delete", nth=nth, action=action)])
        with suppress(Crash, kt.DataError):
            table_in(faulty).remove_orphan_files(moment, dry_run=False)
        inside = table_in(store).stored.store
        assert torn_snapshots(inside) == set()
        table_in(store).remove_orphan_files(moment, dry_run=False)
        assert stray_files(inside) == set()


def test_torn_tag_stops_cleaning_before_anything_goes() -> None:
    table = table_in(with_orphans())
    store = table.stored.store
    store.put(paths.tag_path("two"), b"{")
    before = {f.path for f in store.list()}
    with pytest.raises(kt.DataError, match="tag-two"):
        table.remove_orphan_files(now_ms(), dry_run=False)
    assert {f.path for f in store.list()} == before


def test_writer_beside_it_loses_nothing_that_is_younger() -> None:
    """The writer is between its data files and its commit when the cleaning comes."""
    store = with_orphans()
    moment = now_ms()

    class Cleaned(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            table_in(store).remove_orphan_files(moment, dry_run=False)
            return super().create(path, data)

    table_in(Cleaned(store)).write([{"p": "new", "k": 1, "v": "x"}])
    table = table_in(store)
    assert table.scan(where="p = 'new'").count() == 1
    assert table.verify().is_healthy
    assert stray_files(table.stored.store) == set()


def test_procedure_cleans_all_tables_of_a_database() -> None:
    lake = kt.connect("", store=with_orphans())
    lake.sql("CREATE TABLE other (k INT); CREATE TABLE elsewhere.t (k INT)")
    strays = stray_files(lake.table("t").stored.store)
    call = f"CALL sys.remove_orphan_files(table => 'default.*', older_than => {now_ms()})"
    found = {row["table"]: (row["files"], row["deleted"]) for row in lake.sql(call).to_pylist()}
    assert found == {"default.other": (0, True), "default.t": (len(strays), True)}
    with pytest.raises(kt.NotFoundError, match="no table in the database 'none'"):
        lake.sql("CALL sys.remove_orphan_files('none.*')")


def test_procedure_deletes_and_counts() -> None:
    lake = kt.connect("", store=with_orphans())
    assert lake.sql("CALL sys.remove_orphan_files('t')").to_pylist() == [
        {"files": 0, "bytes": 0, "deleted": True}
    ]
    moment = now_ms()
    strays = stray_files(lake.table("t").stored.store)
    call = f"CALL sys.remove_orphan_files(table => 't', older_than => {moment}"
    (told,) = lake.sql(f"{call}, dry_run => true)").to_pylist()
    assert (told["files"], told["deleted"]) == (len(strays), False)
    (done,) = lake.sql(f"{call})").to_pylist()
    assert done == told | {"deleted": True}
    assert stray_files(lake.table("t").stored.store) == set()
