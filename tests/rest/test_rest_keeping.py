"""What a catalog alone changes of its tables, asked for by their names in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from catalog_server import Service, connected, strikes

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from table_rows import by_key, put, tag_ids

Rows = dict[int, int]


def posts(service: Service, ending: str) -> int:
    return sum(a.startswith("POST") and a.endswith(ending) for a in service.asked)


def to(ending: str) -> Callable[[str, str], bool]:
    return lambda method, path: method == "POST" and path.endswith(ending)


# -- definitions -----------------------------------------------------------------------------------

CHANGES = """
ALTER TABLE shop.w ADD COLUMN a STRING COMMENT 'of a' AFTER k;
ALTER TABLE shop.w ADD COLUMNS (b ROW<x INT, y STRING>, c INT DEFAULT 3);
ALTER TABLE shop.w ADD COLUMN b.z BIGINT;
ALTER TABLE shop.w RENAME COLUMN v TO version;
ALTER TABLE shop.w ALTER COLUMN n TYPE BIGINT;
ALTER TABLE shop.w ALTER COLUMN n DROP NOT NULL;
ALTER TABLE shop.w ALTER COLUMN c COMMENT 'of c';
ALTER TABLE shop.w ALTER COLUMN c FIRST;
ALTER TABLE shop.w DROP COLUMN gone;
ALTER TABLE shop.w SET ('snapshot.num-retained.max' = '70', 'tag.num-retained-max' = '3');
ALTER TABLE shop.w RESET ('tag.num-retained-max');
COMMENT ON TABLE shop.w IS 'all of it'
"""


def test_tables_of_a_catalog_are_altered_as_those_in_folders(lake: kt.Lake, tmp_path: Path) -> None:
    made = []
    for each in (lake, kt.connect(tmp_path / "folder")):
        each.sql(
            "CREATE TABLE shop.w (k INT, v INT, n INT NOT NULL, gone INT, "
            "PRIMARY KEY (k) NOT ENFORCED) WITH ('sequence.field' = 'v')"
        )
        for statement in CHANGES.strip().split(";\n"):
            each.sql(statement)
        schema = each.table("shop.w").stored.schema
        made.append((schema.id, schema.fields, schema.options, schema.comment))
    assert made[0] == made[1]


def test_rows_before_and_after_a_change_are_read(lake: kt.Lake, table: kt.Table) -> None:
    put(table, {1: 1})
    lake.sql("ALTER TABLE shop.t ADD COLUMN w STRING")
    table.write([{"k": 2, "v": 2, "w": "two"}])
    table.write([{"k": 3, "v": 3, "x": 1.5}], merge_schema=True)
    assert table.scan(columns=["k", "w", "x"]).to_pylist() == [
        {"k": 1, "w": None, "x": None},
        {"k": 2, "w": "two", "x": None},
        {"k": 3, "w": None, "x": 1.5},
    ]


def test_change_that_another_one_rules_out_is_a_conflict(
    service: Service, lake: kt.Lake, table: kt.Table
) -> None:
    other = connected(service)

    def overtaken(method: str, path: str) -> None:
        if to("/tables/t")(method, path):
            service.trouble = lambda method, path: None
            other.sql("ALTER TABLE shop.t ADD COLUMN w INT")

    service.trouble = overtaken
    with pytest.raises(kt.ConflictError, match=r"another change was made first"):
        lake.sql("ALTER TABLE shop.t ADD COLUMN w STRING")


@pytest.mark.parametrize("trouble", ["lost before", "lost after"])
def test_change_whose_answer_is_lost_is_looked_for(
    service: Service, lake: kt.Lake, table: kt.Table, trouble: str
) -> None:
    service.trouble = strikes(to("/tables/t"), trouble)
    if trouble == "lost before":
        with pytest.raises(kt.DataError, match="check the table"):
            lake.sql("ALTER TABLE shop.t ADD COLUMN w INT")
    else:
        lake.sql("ALTER TABLE shop.t ADD COLUMN w INT")
    found = lake.table("shop.t").schema.names
    assert found == (["k", "v", "w"] if trouble == "lost after" else ["k", "v"])


def test_members_of_a_row_are_not_moved(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE shop.r (k INT, r ROW<a INT, b INT>, PRIMARY KEY (k) NOT ENFORCED)")
    with pytest.raises(kt.UnsupportedError, match=r"r\.b cannot be moved"):
        lake.sql("ALTER TABLE shop.r ALTER COLUMN r.b FIRST")


# -- tags ------------------------------------------------------------------------------------------


def test_tags_are_made_read_renamed_and_deleted(lake: kt.Lake, table: kt.Table) -> None:
    put(table, {1: 1})
    put(table, {1: 2})
    table.create_tag("one", 1)
    table.create_tag("two", time_retained="7 d")
    assert tag_ids(table) == {"one": 1, "two": 2}
    assert [str(tag.time_retained) for tag in table.tags()] == ["None", "7 days, 0:00:00"]
    with pytest.raises(kt.AlreadyExistsError, match="has a tag 'one' of snapshot 1"):
        table.create_tag("one")
    with pytest.raises(kt.NotFoundError, match="no snapshot 9"):
        table.create_tag("nine", 9)
    assert table.scan(tag="one").to_pylist() == [{"k": 1, "v": 1}]
    table.rename_tag("one", "first")
    table.delete_tag("two")
    assert tag_ids(table) == {"first": 1}
    with pytest.raises(kt.NotFoundError, match="no tag 'two'"):
        table.delete_tag("two")


def test_tag_whose_answer_is_lost_is_made_once(service: Service, table: kt.Table) -> None:
    put(table, {1: 1})
    service.trouble = strikes(to("/tags"), "lost after")
    table.create_tag("one")
    assert tag_ids(table) == {"one": 1}


def test_tag_that_the_catalog_would_not_keep_for_ever_is_refused(
    lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1})
    lake.sql("ALTER TABLE shop.t SET ('tag.default-time-retained' = '1 d')")
    table.create_tag("day")
    with pytest.raises(kt.UnsupportedError, match="keeps tags for '1 d'"):
        table.create_tag("ever", time_retained="forever")
    assert list(tag_ids(table)) == ["day"]


def test_partitions_are_restored_behind_the_guard_of_a_tag(table: kt.Table) -> None:
    put(table, {1: 1})
    put(table, {1: 2, 2: 2})
    table.restore(1)
    assert by_key(table) == {1: 1}


# -- branches --------------------------------------------------------------------------------------


def test_branch_of_a_tag_is_written_and_fast_forwarded_to(table: kt.Table) -> None:
    put(table, {1: 1})
    table.create_tag("one")
    trial = table.create_branch("trial", tag="one")
    put(trial, {1: 2, 2: 2})
    assert (by_key(table), by_key(trial)) == ({1: 1}, {1: 2, 2: 2})
    assert [(b.name, b.newest and b.newest.id) for b in table.branches()] == [("trial", 2)]
    trial.create_tag("mine")
    done = table.fast_forward("trial")
    assert (done.removed, done.added) == (0, 1)
    assert by_key(table) == {1: 2, 2: 2}
    assert tag_ids(table) == {"mine": 2, "one": 1}
    put(table, {3: 3})
    assert by_key(table) == {1: 2, 2: 2, 3: 3}


def test_branches_are_made_empty_altered_renamed_and_deleted(
    lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1})
    table.create_branch("b", empty=True)
    with pytest.raises(kt.AlreadyExistsError, match="has a branch 'b'"):
        table.create_branch("b", empty=True)
    lake.sql("ALTER TABLE shop.t$branch_b ADD COLUMN w INT")
    renamed = table.rename_branch("b", "c")
    renamed.write([{"k": 7, "v": 7, "w": 7}])
    assert renamed.scan().to_pylist() == [{"k": 7, "v": 7, "w": 7}]
    assert by_key(table) == {1: 1}
    with pytest.raises(kt.NotFoundError, match="no branch 'b'"):
        table.branch("b")
    table.delete_branch("c")
    assert list(table.branches()) == []


# -- rollback --------------------------------------------------------------------------------------


def test_table_is_rolled_back_to_snapshots_and_tags(table: kt.Table) -> None:
    for number in range(1, 5):
        put(table, {1: number})
    table.create_tag("two", 2)
    table.create_tag("four")
    done = table.rollback_to(3)
    assert (done.previous_snapshot_id, done.current_snapshot_id, done.tags) == (4, 3, ("four",))
    assert (by_key(table), tag_ids(table)) == ({1: 3}, {"two": 2})
    table.expire_snapshots(retain_max=1, retain_min=1)
    table.rollback_to("two")
    assert by_key(table) == {1: 2}
    put(table, {2: 9})
    assert [snapshot.id for snapshot in table.snapshots()] == [2, 3]


def test_rollback_whose_answer_is_lost_is_seen(service: Service, table: kt.Table) -> None:
    put(table, {1: 1})
    put(table, {1: 2})
    service.trouble = strikes(to("/rollback"), "lost after")
    table.rollback_to(1)
    assert by_key(table) == {1: 1}


def test_rollback_takes_nothing_away_that_others_commit_meanwhile(
    service: Service, table: kt.Table
) -> None:
    put(table, {1: 1})
    put(table, {1: 2})
    other = connected(service).table("shop.t")

    def overtaken(method: str, path: str) -> None:
        if to("/rollback")(method, path):
            service.trouble = lambda method, path: None
            put(other, {1: 3})

    service.trouble = overtaken
    with pytest.raises(kt.ConflictError, match="other writers committed"):
        table.rollback_to(1)
    assert by_key(table) == {1: 3}


# -- tables made with rows -------------------------------------------------------------------------


def test_table_is_made_with_the_rows_of_a_query(lake: kt.Lake, table: kt.Table) -> None:
    put(table, {1: 1, 2: 2})
    lake.sql("CREATE TABLE shop.u WITH ('primary-key' = 'k') AS SELECT k, v * 10 AS v FROM shop.t")
    assert by_key(lake.table("shop.u")) == {1: 10, 2: 20}
    with pytest.raises(kt.AlreadyExistsError):
        lake.sql("CREATE TABLE shop.u WITH ('primary-key' = 'k') AS SELECT k, v FROM shop.t")


def test_table_whose_rows_fail_is_not_there(service: Service, lake: kt.Lake) -> None:
    with pytest.raises(kt.KeytideError):
        lake.sql("CREATE TABLE shop.u AS SELECT CAST(x AS INT) AS k FROM (VALUES ('a')) AS t (x)")
    service.trouble = lambda method, path: "403" if path.endswith("/commit") else None
    with pytest.raises(kt.DataError, match="403"):
        lake.sql("CREATE TABLE shop.u AS SELECT 1 AS k")
    service.trouble = lambda method, path: None
    assert lake.tables() == []


# -- another table of the same name ----------------------------------------------------------------


def test_handle_of_a_table_that_was_made_anew_changes_nothing(
    service: Service, lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1})
    put(table, {1: 2})
    table.create_tag("one", 1)
    other = connected(service)
    other.drop_table("shop.t")
    other.sql("CREATE TABLE shop.t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    made = other.table("shop.t")
    put(made, {5: 5})
    put(made, {6: 6})
    tries: list[Callable[[], object]] = [
        lambda: put(table, {2: 2}),
        lambda: table.alter(SetOption("snapshot.num-retained.max", "9")),
        lambda: table.create_tag("x", 1),
        lambda: table.delete_tag("one"),
        lambda: table.rollback_to(1),
        lambda: table.create_branch("b", empty=True),
    ]
    for call in tries:
        with pytest.raises(kt.KeytideError):
            call()
    assert by_key(made) == {5: 5, 6: 6}
    assert "snapshot.num-retained.max" not in made.stored.schema.options
    assert (tag_ids(made), list(made.branches())) == ({}, [])


# -- counts ----------------------------------------------------------------------------------------


def test_catalog_is_told_what_each_commit_changes_of_partitions(
    service: Service, lake: kt.Lake
) -> None:
    lake.sql(
        "CREATE TABLE shop.p (d DATE, s STRING, k INT, PRIMARY KEY (d, s, k) NOT ENFORCED) "
        "PARTITIONED BY (d, s) WITH ('partition.legacy-name' = 'false')"
    )
    lake.sql(
        "INSERT INTO shop.p VALUES (DATE '2024-05-01', 'a/b', 1), (DATE '2024-05-01', '', 2), "
        "(DATE '2024-05-02', 'c', 3), (DATE '2024-05-02', 'c', 4)"
    )
    lake.sql("DELETE FROM shop.p WHERE k = 3")
    table = lake.table("shop.p")
    table.compact(full=True)
    lake.sql("DELETE FROM shop.p WHERE s = 'a/b'")
    table.compact(full=True)
    counted = {
        tuple(json.loads(spec).values()): counts["recordCount"]
        for spec, counts in service.databases["shop"]["p"].partitions.items()
        if counts["recordCount"]
    }
    assert counted == {
        ("2024-05-01", "__DEFAULT_PARTITION__"): 1,
        ("2024-05-02", "c"): 1,
    }
    sizes = lake.sql("SELECT file_size_in_bytes AS s FROM shop.p$files").to_pylist()
    told = service.databases["shop"]["p"].partitions.values()
    assert sum(row["s"] for row in sizes) == sum(each["fileSizeInBytes"] for each in told)
