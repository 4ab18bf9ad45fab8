"""Statements, procedures and names that users of Delta, Iceberg and Paimon bring along."""

from __future__ import annotations

import pytest

import keytide as kt

T = "shop.orders"


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    """`shop.orders` in four snapshots, with the keys 0 to n - 1 in snapshot n; no compaction."""
    lake = kt.connect(warehouse)
    lake.sql(
        f"CREATE TABLE {T} (id BIGINT, s STRING, PRIMARY KEY (id) NOT ENFORCED) "
        f"WITH ('bucket' = '1', 'write-only' = 'true')"
    )
    for i in range(4):
        lake.sql(f"INSERT INTO {T} VALUES ({i}, 'new')")
    return lake


def ids(lake: kt.Lake, text: str = T) -> list[int]:
    return sorted(row["id"] for row in lake.sql(f"SELECT id FROM {text}"))


# -- Delta -----------------------------------------------------------------------------------------


def test_optimize_merges_all_files(lake: kt.Lake) -> None:
    [told] = lake.sql(f"OPTIMIZE {T}").to_pylist()
    assert (told["files_before"], told["files_after"]) == (4, 1)
    assert ids(lake) == [0, 1, 2, 3]


def test_optimize_where_merges_the_partitions_that_are_chosen(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE days (id BIGINT, d STRING, PRIMARY KEY (id, d) NOT ENFORCED) "
        "PARTITIONED BY (d) WITH ('bucket' = '1', 'write-only' = 'true')"
    )
    for i in range(2):
        lake.sql(f"INSERT INTO days VALUES ({i}, 'a'), ({i}, 'b')")
    [told] = lake.sql("OPTIMIZE days WHERE d = 'a'").to_pylist()
    assert (told["buckets"], told["files_before"]) == (1, 2)


def test_optimize_zorder_puts_rows_without_a_key_in_order(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE events (a INT, b INT)")
    lake.sql("INSERT INTO events VALUES (2, 1), (1, 2)")
    lake.sql("OPTIMIZE events ZORDER BY (a, b)")
    assert [row["a"] for row in lake.sql("SELECT a FROM events")] == [1, 2]
    with pytest.raises(kt.KeytideError, match="only for tables without a primary key"):
        lake.sql(f"OPTIMIZE {T} ZORDER BY (s)")


def test_vacuum_expires_what_is_older_and_tells_of_it_before(lake: kt.Lake) -> None:
    lake.sql(f"ALTER TABLE {T} SET ('snapshot.num-retained.min' = '1')")
    [told] = lake.sql(f"VACUUM {T} RETAIN 0 HOURS DRY RUN").to_pylist()
    assert told["snapshots"] == 3
    assert len(lake.table(T).snapshots()) == 4
    lake.sql(f"VACUUM {T} RETAIN 0 HOURS")
    assert len(lake.table(T).snapshots()) == 1
    lake.sql(f"INSERT INTO {T} VALUES (9, 'new')")
    lake.sql(f"VACUUM {T} RETAIN 1 HOURS")
    assert len(lake.table(T).snapshots()) == 2


@pytest.mark.parametrize("place", ["VERSION AS OF 2", "AS OF VERSION 2", "VERSION AS OF 'two'"])
def test_restore_makes_the_table_what_it_was(lake: kt.Lake, place: str) -> None:
    lake.table(T).create_tag("two", 2)
    lake.sql(f"RESTORE TABLE {T} TO {place}")
    assert ids(lake) == [0, 1]
    assert len(lake.table(T).snapshots()) == 5


def test_restore_to_a_time_takes_the_newest_snapshot_of_then(lake: kt.Lake) -> None:
    with pytest.raises(kt.NotFoundError, match="2020"):
        lake.sql(f"RESTORE {T} TO TIMESTAMP AS OF '2020-01-01'")
    lake.sql(f"DELETE FROM {T}$branch_main WHERE id = 0")
    lake.sql(f"RESTORE {T} TO TIMESTAMP AS OF '2999-01-01'")
    assert ids(lake) == [1, 2, 3]


def test_table_changes_tells_how_changes_are_read_here(lake: kt.Lake) -> None:
    with pytest.raises(
        kt.UnsupportedError, match=r"table_changes\(\) is not supported.*incremental-be"
    ):
        lake.sql(f"SELECT * FROM table_changes('{T}', 0, 2)")


# -- tags and branches -----------------------------------------------------------------------------


def tags(lake: kt.Lake) -> dict[str, tuple[int, str | None]]:
    rows = lake.sql(f"SHOW TAGS {T}")
    return {row["tag_name"]: (row["snapshot_id"], row["time_retained"]) for row in rows}


def test_tags_are_made_replaced_renamed_and_dropped(lake: kt.Lake) -> None:
    lake.sql(f"ALTER TABLE {T} CREATE TAG `end-of-week` AS OF VERSION 1 RETAIN 7 DAYS")
    lake.sql(f"ALTER TABLE {T} CREATE TAG 'now'")
    assert tags(lake) == {"end-of-week": (1, "PT168H"), "now": (4, None)}
    lake.sql(f"ALTER TABLE {T} CREATE TAG IF NOT EXISTS now AS OF VERSION 2")
    lake.sql(f"ALTER TABLE {T} CREATE OR REPLACE TAG `end-of-week` AS OF VERSION 2")
    lake.sql(f"ALTER TABLE {T} CREATE OR REPLACE TAG other AS OF VERSION 'end-of-week'")
    assert tags(lake) == {"end-of-week": (2, None), "now": (4, None), "other": (2, None)}
    lake.sql(f"ALTER TABLE {T} REPLACE TAG now AS OF VERSION 3 RETAIN 90 MINUTES")
    lake.sql(f"ALTER TABLE {T} RENAME TAG other TO another")
    lake.sql(f"ALTER TABLE {T} DROP TAG `end-of-week`")
    lake.sql(f"ALTER TABLE {T} DROP TAG IF EXISTS `end-of-week`")
    assert tags(lake) == {"another": (2, None), "now": (3, "PT1H30M")}
    with pytest.raises(kt.AlreadyExistsError, match="has a tag 'now'"):
        lake.sql(f"ALTER TABLE {T} CREATE TAG now")
    for missing in ("DROP TAG gone", "REPLACE TAG gone"):
        with pytest.raises(kt.NotFoundError, match="no tag 'gone'"):
            lake.sql(f"ALTER TABLE {T} {missing}")


def test_branches_begin_with_rows_and_are_read_and_written_by_each_spelling(lake: kt.Lake) -> None:
    lake.sql(f"ALTER TABLE {T} CREATE BRANCH audit AS OF VERSION 2")
    lake.sql(f"INSERT INTO {T}.branch_audit VALUES (7, 'audited')")
    lake.sql(f"DELETE FROM {T}.branch_audit WHERE id = 0")
    for spelling in (f"{T}.branch_audit", f"{T}$branch_audit", f"{T} VERSION AS OF 'audit'"):
        assert ids(lake, spelling) == [1, 7]
    assert ids(lake) == [0, 1, 2, 3]
    lake.sql(f"CALL prod.system.fast_forward('{T}', 'main', 'audit', discard => true)")
    assert ids(lake) == [1, 7]


def test_branches_are_renamed_and_dropped(lake: kt.Lake) -> None:
    lake.sql(f"ALTER TABLE {T} CREATE BRANCH a")
    lake.sql(f"ALTER TABLE {T} CREATE BRANCH IF NOT EXISTS a AS OF VERSION 1")
    assert ids(lake, f"{T}.branch_a") == [0, 1, 2, 3]
    lake.sql(f"ALTER TABLE {T} RENAME BRANCH a TO b")
    assert [row["branch_name"] for row in lake.sql(f"SHOW BRANCHES {T}")] == ["b"]
    lake.sql(f"ALTER TABLE {T} DROP BRANCH b; ALTER TABLE {T} DROP BRANCH IF EXISTS b")
    with pytest.raises(kt.NotFoundError, match="no branch 'b'"):
        lake.sql(f"ALTER TABLE {T} DROP BRANCH b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE BRANCH b RETAIN 7 DAYS", "a branch is kept until it is dropped"),
        ("CREATE BRANCH b WITH SNAPSHOT RETENTION 2 SNAPSHOTS", "a branch is kept until"),
        ("CREATE OR REPLACE BRANCH b", "a branch cannot be replaced"),
        ("CREATE TAG t RETAIN 7", "expected HOURS or DAYS, found the end"),
        ("CREATE TAG t RETAIN soon DAYS", "expected RETAIN n DAYS | HOURS"),
        ("CREATE TAG", "expected the name of a tag"),
        ("CREATE TAG t AS OF 3", "expected VERSION AS OF"),
        ("CREATE TAG t AS OF VERSION 99", "no snapshot 99"),
    ],
)
def test_what_a_statement_cannot_mean_is_said(lake: kt.Lake, text: str, message: str) -> None:
    with pytest.raises(kt.KeytideError, match=message.replace("|", r"\|")):
        lake.sql(f"ALTER TABLE {T} {text}")
    assert tags(lake) == {}
    assert lake.sql(f"SHOW BRANCHES {T}").to_pylist() == []


def test_tag_comes_before_a_branch_of_its_name(lake: kt.Lake) -> None:
    lake.sql(f"ALTER TABLE {T} CREATE TAG x AS OF VERSION 1; ALTER TABLE {T} CREATE BRANCH x")
    assert ids(lake, f"{T} VERSION AS OF 'x'") == [0]


# -- Iceberg ---------------------------------------------------------------------------------------


def test_tables_about_a_table_are_found_behind_a_dot(lake: kt.Lake) -> None:
    assert len(lake.sql(f"SELECT * FROM {T}.snapshots").to_pylist()) == 4
    assert len(lake.sql(f"SELECT * FROM {T}.Files f").to_pylist()) == 4
    with pytest.raises(kt.InvalidError, match="not a valid table name"):
        lake.sql(f"SELECT * FROM {T}.nothing")


def test_procedures_of_iceberg_do_what_they_do_there(lake: kt.Lake) -> None:
    lake.sql(f"CALL cat.system.set_current_snapshot('{T}', 2)")
    assert ids(lake) == [0, 1]
    assert len(lake.table(T).snapshots()) == 5
    lake.table(T).create_tag("three", 3)
    lake.sql(f"CALL system.set_current_snapshot(table => '{T}', ref => 'three')")
    assert ids(lake) == [0, 1, 2]
    lake.sql(f"CALL system.rollback_to_snapshot(table => '{T}', snapshot_id => 1)")
    assert ids(lake) == [0]
    assert len(lake.table(T).snapshots()) == 1


def test_rewriting_of_iceberg_is_compaction(lake: kt.Lake) -> None:
    [told] = lake.sql(f"CALL system.rewrite_manifests('{T}')").to_pylist()
    assert told["manifests_after"] == 1
    [told] = lake.sql(f"CALL system.rewrite_data_files('{T}')").to_pylist()
    assert (told["files_before"], told["files_after"]) == (4, 1)
    assert lake.sql(f"CALL system.rewrite_position_delete_files('{T}')").to_pylist()
    lake.sql("CREATE TABLE events (a INT, b INT)")
    lake.sql("INSERT INTO events VALUES (2, 1), (1, 2)")
    for order in ("a, b", "zorder(a, b)"):
        lake.sql(
            f"CALL system.rewrite_data_files(table => 'events', strategy => 'sort', "
            f"sort_order => '{order}')"
        )
        assert [row["a"] for row in lake.sql("SELECT a FROM events")] == [1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("rewrite_data_files(table => '{T}', strategy => 'sort')", "require each other"),
        ("rewrite_data_files(table => '{T}', sort_order => 'id')", "require each other"),
        ("set_current_snapshot('{T}')", "give a snapshot id, or a tag"),
        ("fast_forward('{T}', 'a', 'b')", "only 'main' can be fast-forwarded"),
        ("create_changelog_view(table => '{T}')", "audit_log"),
        ("cherrypick_snapshot('{T}', 1)", "write to a branch"),
        ("add_files(table => '{T}', source_table => 'x')", "adopt_parquet"),
        ("snapshot('{T}', 'x')", "adopt_iceberg"),
    ],
)
def test_what_a_procedure_cannot_do_is_said_with_the_way_out(
    lake: kt.Lake, call: str, message: str
) -> None:
    with pytest.raises(kt.KeytideError, match=message):
        lake.sql(f"CALL system.{call.replace('{T}', T)}")
