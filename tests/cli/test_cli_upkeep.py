"""The commands that keep a table in shape."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

import keytide as kt
from keytide.cli import output
from keytide.definition.schema_evolution import SetOption
from keytide.tasks import Threads

Run = Callable[..., Any]


def test_compact_tells_first_what_it_would_do_and_then_does_it(run: Run, orders: kt.Table) -> None:
    before = sorted(orders.scan().to_pylist(), key=str)
    told = run("compact", orders.uri, "--full", "--dry-run", "-f", "json")
    would = json.loads(told.out)
    assert (told.code, told.err) == (0, "")
    assert (would["snapshot_id"], would["files_after"]) == (None, None)
    assert would["files_before"] == len(orders.scan().live.entries)
    assert len(orders.snapshots()) == 2
    done = json.loads(run("compact", orders.uri, "--full", "-f", "json").out)
    assert (done["snapshot_id"], done["files_before"]) == (3, would["files_before"])
    assert sorted(orders.scan().to_pylist(), key=str) == before


def test_compact_says_when_nothing_is_due(run: Run, orders: kt.Table, warehouse: str) -> None:
    done = run("compact", "-w", warehouse, "shop.orders")
    assert (done.code, done.err) == (0, "nothing to compact\n")
    assert len(orders.snapshots()) == 2


def test_compact_of_a_table_that_must_stay_is_one_line_and_exit_code_1(
    run: Run, warehouse: str
) -> None:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE logs (n INT PRIMARY KEY, s INT) "
             "WITH ('merge-engine' = 'partial-update', 'sequence.field' = 's', "
             "'force-lookup' = 'true')")  # fmt: skip
    done = run("compact", "-w", warehouse, "default.logs")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: table default.logs: this release cannot compact it: ")
    assert done.err.count("\n") == 1


def test_compact_orders_the_rows_of_an_append_table(run: Run, warehouse: str) -> None:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE logs (n INT, m INT)")
    table = lake.table("logs")
    table.write([{"n": 2, "m": 1}, {"n": 1, "m": 1}])
    asked = ("--order-by", "n,m", "--order-strategy", "hilbert")
    assert run("compact", "-w", warehouse, "default.logs", *asked).code == 0
    assert [row["n"] for row in table.scan().to_pylist()] == [1, 2]


def test_compact_on_spark_without_pyspark_says_how_to_get_it(
    run: Run, orders: kt.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [name for name in sys.modules if name.startswith("keytide.spark")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = run("compact", orders.uri, "--spark", "local[*]")
    assert (done.code, done.out) == (1, "")
    assert "pip install 'keytide[spark]'" in done.err
    assert len(orders.snapshots()) == 2


def test_compact_on_a_spark_that_cannot_be_is_wrong_usage(run: Run, orders: kt.Table) -> None:
    done = run("compact", orders.uri, "--spark", "fast")
    assert (done.code, done.out) == (2, "")
    assert "local[*]" in done.err


# -- tags ------------------------------------------------------------------------------------------


def tags(run: Run, table: kt.Table) -> list[tuple[str, int, int | None]]:
    lines = run("tag", "ls", table.uri, "-f", "json").out.splitlines()
    found = [json.loads(line) for line in lines]
    return [(tag["name"], tag["snapshot_id"], tag["retained_seconds"]) for tag in found]


def test_tags_are_made_replaced_renamed_listed_and_deleted(run: Run, orders: kt.Table) -> None:
    made = run("tag", "create", orders.uri, "a", "--snapshot-id", "1", "-f", "json")
    assert (made.code, json.loads(made.out)["snapshot_id"]) == (0, 1)
    run("tag", "create", orders.uri, "b", "--time-retained", "2 h")
    assert tags(run, orders) == [("a", 1, None), ("b", 2, 7200)]
    run("tag", "replace", orders.uri, "a")
    run("tag", "rename", orders.uri, "b", "c")
    assert tags(run, orders) == [("a", 2, None), ("c", 2, 7200)]
    gone = run("tag", "delete", orders.uri, "c")
    assert (gone.code, gone.out, gone.err) == (0, "", "tag c deleted\n")
    assert tags(run, orders) == [("a", 2, None)]


def test_tags_whose_time_is_over_are_told_first_and_then_deleted(
    run: Run, orders: kt.Table
) -> None:
    orders.create_tag("a")
    would = run(
        "tag", "expire", orders.uri, "--older-than", "2100-01-01", "--dry-run", "-f", "json"
    )
    assert json.loads(would.out)["name"] == "a"
    assert run("tag", "expire", orders.uri).err == "no rows\n"
    assert tags(run, orders) == [("a", 2, None)]
    assert (
        run("tag", "expire", orders.uri, "--older-than", "2100-01-01", "-f", "json").out
        == would.out
    )
    assert tags(run, orders) == []


def test_tags_are_a_table_for_people(run: Run, orders: kt.Table) -> None:
    assert run("tag", "ls", orders.uri).err == "no rows\n"
    orders.create_tag("a", 1)
    head, row = run("tag", "ls", orders.uri).out.splitlines()
    assert head.split() == [
        "name", "snapshot_id", "snapshot_time", "stored_versions", "create_time", "retained_seconds"
    ]  # fmt: skip
    assert row.split()[:2] == ["a", "1"]


def test_tag_that_cannot_be_is_one_line_and_exit_code_1(run: Run, orders: kt.Table) -> None:
    done = run("tag", "create", orders.uri, "a", "--snapshot-id", "7")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: table shop.orders has no snapshot 7, and no tag")
    assert done.err.count("\n") == 1


# -- rollback --------------------------------------------------------------------------------------


def test_rollback_tells_first_what_it_would_delete_and_then_does_it(
    run: Run, orders: kt.Table
) -> None:
    orders.create_tag("a", 2)
    would = run("rollback", orders.uri, "--snapshot-id", "1", "--dry-run", "-f", "json")
    assert (would.code, len(orders.snapshots())) == (0, 2)
    assert json.loads(would.out) == {
        "previous_snapshot_id": 2,
        "current_snapshot_id": 1,
        "snapshots": 1,
        "changelogs": 0,
        "tags": "a",
        "consumers": "",
    }
    done = run("rollback", orders.uri, "--snapshot-id", "1", "-f", "json")
    assert (done.out, done.err) == (would.out, "")
    assert [snapshot.id for snapshot in orders.snapshots()] == [1]


def test_rollback_goes_to_a_tag_or_a_time(run: Run, orders: kt.Table) -> None:
    orders.create_tag("a", 1)
    assert run("rollback", orders.uri, "--as-of", "2100-01-01").code == 0
    assert len(orders.snapshots()) == 2
    assert run("rollback", orders.uri, "--tag", "a").code == 0
    assert len(orders.snapshots()) == 1


def test_rollback_names_consumers_that_should_begin_anew(run: Run, orders: kt.Table) -> None:
    list(orders.follow(consumer="c", timeout_seconds=0))
    done = run("rollback", orders.uri, "--snapshot-id", "1")
    assert (done.code, done.err) == (
        0,
        "consumers that read deleted snapshots and must restart: c\n",
    )


def test_rollback_to_no_place_or_two_is_wrong_usage(run: Run, orders: kt.Table) -> None:
    for places in ([], ["--snapshot-id", "1", "--tag", "a"]):
        done = run("rollback", orders.uri, *places)
        assert (done.code, len(orders.snapshots())) == (2, 2)
        assert "use exactly one of" in done.err


def test_expire_tells_first_what_would_go_and_then_lets_it_go(run: Run, orders: kt.Table) -> None:
    before = sorted(orders.scan().to_pylist(), key=str)
    arguments = ("expire", orders.uri, "--retain-max", "1", "-f", "json")
    would = json.loads(run(*arguments, "--dry-run").out)
    assert (would["snapshots"], would["earliest_id"]) == (1, 2)
    assert len(orders.snapshots()) == 2
    assert json.loads(run(*arguments).out) == would
    assert [snapshot.id for snapshot in orders.snapshots()] == [2]
    assert sorted(orders.scan().to_pylist(), key=str) == before
    assert run(*arguments).err == "nothing to expire\n"


def test_expire_of_numbers_that_contradict_each_other_is_one_line(
    run: Run, orders: kt.Table
) -> None:
    done = run("expire", orders.uri, "--retain-max", "1", "--retain-min", "2")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "retain_min is 2" in done.err


def test_orphans_are_listed_and_deleted_when_that_is_asked_for(run: Run, orders: kt.Table) -> None:
    orders.stored.store.put("manifest/manifest-stray", b"12345")
    assert run("orphans", orders.uri).err == "0 files, 0 bytes; use --delete to delete them\n"
    time.sleep(0.01)
    now = f"{datetime.now(timezone.utc).isoformat()}"
    told = run("orphans", orders.uri, "--older-than", now, "-f", "json")
    assert [json.loads(line) for line in told.out.splitlines()] == [
        {"path": "manifest/manifest-stray"}
    ]
    assert told.err == "1 file, 5 bytes; use --delete to delete them\n"
    assert run("orphans", orders.uri, "--older-than", now, "--delete").err == (
        "deleted 1 file, 5 bytes\n"
    )
    assert not orders.stored.store.exists("manifest/manifest-stray")
    assert orders.verify().is_healthy


def test_purge_tells_first_what_would_go_and_then_deletes_it(run: Run, orders: kt.Table) -> None:
    orders.create_tag("a")
    would = json.loads(run("purge-files", orders.uri, "--dry-run", "-f", "json").out)
    assert (would["snapshots"], would["tags"], would["files"]) == (2, 1, None)
    assert orders.scan().count() == 3
    done = run("purge-files", orders.uri, "-f", "json")
    assert (done.code, {**json.loads(done.out), "files": None}) == (0, would)
    assert (orders.scan().count(), len(orders.snapshots()), len(orders.tags())) == (0, 1, 0)


def test_files_get_the_filters_that_they_lack(run: Run, orders: kt.Table) -> None:
    lacking = run("rewrite-file-index", orders.uri)
    assert (lacking.code, lacking.out) == (1, "")
    assert "name columns in 'file-index.bloom-filter.columns' first" in lacking.err
    orders.alter(SetOption("file-index.bloom-filter.columns", "status"))
    done = run("rewrite-file-index", orders.uri, "-f", "json")
    found = json.loads(done.out)
    assert (done.code, found["indexed"], found["snapshot_id"]) == (0, found["files"], 3)
    again = run("rewrite-file-index", orders.uri)
    assert (again.code, again.err) == (0, "no file lacks a bloom filter\n")
    assert run("rewrite-file-index", orders.uri, "--partition", "a=1").code == 1


# -- branches --------------------------------------------------------------------------------------


def test_branches_are_made_listed_brought_back_and_deleted(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    made = run("branch", "create", orders.uri, "b", "--snapshot-id", "1")
    assert (made.code, made.out, made.err) == (0, "", "branch shop.orders$branch_b created\n")
    (branch,) = [
        json.loads(line) for line in run("branch", "ls", orders.uri, "-f", "json").out.splitlines()
    ]
    assert (branch["name"], branch["first_snapshot_id"], branch["stored_versions"]) == ("b", 1, 3)
    for named in (
        ["shop.orders$branch_b", "-w", warehouse],
        [f"{warehouse}/shop.db/orders$branch_b"],
    ):
        assert len(run("scan", *named, "-f", "json").out.splitlines()) == 3
    would = run("branch", "fast-forward", orders.uri, "b", "--dry-run", "-f", "json")
    assert json.loads(would.out)["removed"] == 1
    assert len(orders.snapshots()) == 2
    assert (
        run("branch", "fast-forward", orders.uri, "b", "--discard", "-f", "json").out == would.out
    )
    assert len(orders.snapshots()) == 1
    renamed = run("branch", "rename", orders.uri, "b", "c")
    assert (renamed.code, renamed.out, renamed.err) == (0, "", "branch b renamed to c\n")
    gone = run("branch", "delete", orders.uri, "c")
    assert (gone.code, gone.err) == (0, "branch c deleted\n")
    assert run("branch", "ls", orders.uri).err == "no rows\n"


def test_branch_that_is_not_there_is_one_line_and_exit_code_1(run: Run, orders: kt.Table) -> None:
    done = run("scan", f"{orders.uri.rstrip('/')}$branch_b")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "error: table shop.orders has no branch 'b'; existing branches: only the main branch"
    )
    assert done.err.count("\n") == 1


def test_compaction_counts_the_buckets_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int]] = []

    @contextmanager
    def recorded(what: str) -> Iterator[output.Show]:
        assert what == "buckets"
        yield lambda done, total, rows=0: shown.append((done, total))

    monkeypatch.setattr(output, "progress_bar", recorded)
    taken: list[int] = []
    runner = output.TrackedThreads(Threads(1), "buckets")
    runner.each([lambda n=n: n * n for n in range(3)], taken.append)
    assert taken == [0, 1, 4]
    assert shown == [(0, 3), (1, 3), (2, 3), (3, 3)]


# -- consumers -------------------------------------------------------------------------------------


def test_consumers_are_listed_reset_and_cleared(run: Run, orders: kt.Table) -> None:
    list(orders.follow("latest", consumer="nightly", timeout_seconds=0))
    (found,) = map(json.loads, run("consumer", "ls", orders.uri, "-f", "json").out.splitlines())
    assert (found["name"], found["next_snapshot"]) == ("nightly", 2)
    done = run("consumer", "reset", orders.uri, "nightly", "--next-snapshot", "1")
    assert (done.code, done.err) == (0, "consumer nightly continues at snapshot 1\n")
    assert (
        run("consumer", "clear", orders.uri, "--excluding", "n.*").err
        == "consumers deleted: none\n"
    )
    assert run("consumer", "clear", orders.uri, "--older-than", "2020-01-01").err == (
        "consumers deleted: none\n"
    )
    assert run("consumer", "clear", orders.uri).err == "consumers deleted: nightly\n"
    assert run("consumer", "ls", orders.uri).err == "no rows\n"


# -- restore ---------------------------------------------------------------------------------------


def test_restore_tells_first_what_it_would_do_and_then_does_it(
    run: Run, orders: kt.Table, warehouse: str
) -> None:
    would = json.loads(
        run("restore", orders.uri, "--snapshot-id", "1", "--dry-run", "-f", "json").out
    )
    assert (would["snapshot_id"], would["restored_snapshot_id"], would["partitions"]) == (
        None,
        1,
        1,
    )
    assert len(orders.snapshots()) == 2
    done = run("restore", orders.uri, "--snapshot-id", "1", "-f", "json")
    assert (done.code, json.loads(done.out)) == (0, {**would, "snapshot_id": 3})
    assert sorted(row["id"] for row in orders.scan().to_pylist()) == [1, 2, 4]
    again = run("restore", orders.uri, "--as-of", "2100-01-01")
    assert (again.code, again.err) == (0, "nothing to restore\n")


def test_compact_takes_partitions_as_texts(run: Run, lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (d INT, k INT, PRIMARY KEY (d, k) NOT ENFORCED) PARTITIONED BY (d)")
    for _ in range(2):
        lake.sql("INSERT INTO t VALUES (1, 1), (2, 1), (3, 1)")
    given = ("compact", lake.table("t").uri, "--full", "--dry-run", "-f", "json")
    chosen = run(*given, "--partition", "d=1", "--partition", "d=3")
    assert json.loads(chosen.out)["files_before"] == 4
    wrong = run(*given, "--partition", "e=1")
    assert (wrong.code, wrong.out) == (1, "")


def test_restore_of_partitions_takes_them_as_texts(run: Run, lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (d DATE, k INT, PRIMARY KEY (d, k) NOT ENFORCED) PARTITIONED BY (d)")
    lake.sql("INSERT INTO t VALUES (DATE '2026-01-30', 1), (DATE '2026-01-31', 1)")
    lake.sql("TRUNCATE TABLE t")
    table = lake.table("t")
    done = run("restore", table.uri, "--partition", "d=2026-01-31", "--snapshot-id", "1")
    assert (done.code, table.scan().count()) == (0, 1)
    wrong = run("restore", table.uri, "--partition", "e=1", "--snapshot-id", "1")
    assert (wrong.code, wrong.out) == (1, "")
    assert "the partition columns are d" in wrong.err
