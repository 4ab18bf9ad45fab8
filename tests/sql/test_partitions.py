"""Partitions dropped by statements, and procedures over some partitions and many tables."""

from __future__ import annotations

import pytest

import keytide as kt


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    """A table of sums, of which no single row can be deleted, in three partitions."""
    lake = kt.connect(warehouse)
    lake.sql(
        """
        CREATE TABLE t (d DATE, h INT, k INT, v INT, PRIMARY KEY (d, h, k) NOT ENFORCED)
        PARTITIONED BY (d, h)
        WITH ('merge-engine' = 'aggregation', 'fields.v.aggregate-function' = 'sum');
        INSERT INTO t VALUES
          (DATE '2026-01-30', 1, 0, 1), (DATE '2026-01-30', 2, 0, 1), (DATE '2026-01-31', 1, 0, 1)
        """
    )
    return lake


def left(lake: kt.Lake) -> list[str]:
    return sorted(f"{row['d']:%d} {row['h']}" for row in lake.table("t").scan().to_pylist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ALTER TABLE t DROP PARTITION (d = DATE '2026-01-30', h = 1)", ["30 2", "31 1"]),
        ("ALTER TABLE t DROP IF EXISTS PARTITION (d = '2026-01-30')", ["31 1"]),
        ("ALTER TABLE t DROP PARTITION (h = 2), PARTITION (d = '2026-01-31')", ["30 1"]),
        ("ALTER TABLE t DROP IF EXISTS PARTITION (h = 7)", ["30 1", "30 2", "31 1"]),
        ("TRUNCATE TABLE t PARTITION (h = 1)", ["30 2"]),
        ("CALL sys.drop_partition('t', 'd=2026-01-30,h=1', 'd=2026-01-31')", ["30 2"]),
        ("CALL sys.drop_partition('t', 'd=2026-01-30,h=1;h=2')", ["31 1"]),
    ],
)
def test_partitions_are_dropped_in_one_commit(
    text: str, expected: list[str], lake: kt.Lake
) -> None:
    lake.sql(text)
    assert left(lake) == expected
    assert len(lake.table("t").snapshots()) == (1 if len(expected) == 3 else 2)
    assert lake.table("t").scan(snapshot_id=1).count() == 3


def test_sums_of_a_dropped_partition_begin_anew(lake: kt.Lake) -> None:
    table = lake.table("t")
    table.truncate({"h": 1})
    lake.sql("INSERT INTO t VALUES (DATE '2026-01-31', 1, 0, 5)")
    assert lake.sql("SELECT v FROM t WHERE h = 1").to_pylist() == [{"v": 5}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ALTER TABLE t DROP PARTITION (k = 1)", "'k', which is not a partition column"),
        ("ALTER TABLE t DROP PARTITION (h)", "partition column 'h' has no value"),
        ("ALTER TABLE t DROP PARTITION ()", "line 1"),
        ("ALTER TABLE t DROP PARTITION (h = 1) PURGE", "line 1"),
        ("TRUNCATE TABLE t PARTITION (h = 'x')", "h"),
        ("CALL sys.drop_partition('t')", "no partition is given; to drop all rows, use TRUNCATE"),
        ("CALL sys.drop_partition('t', 'k=1')", "the partition columns are d, h"),
        ("CALL sys.rescale('t', 4)", "bucket_num is 4.*ALTER TABLE t SET"),
        ("CALL sys.compact_database('(')", "is not a valid regular expression"),
        ("CALL sys.compact('t', 'h=1', where => 'h = 1')", "give only one of them"),
        ("CALL sys.compact('t', where => 'h >')", "h >"),
    ],
)
def test_what_names_no_partition_drops_nothing(text: str, message: str, lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        lake.sql(text)
    assert left(lake) == ["30 1", "30 2", "31 1"]


def test_some_partitions_are_rescaled(lake: kt.Lake) -> None:
    lake.sql("ALTER TABLE t SET ('bucket' = '2')")
    (row,) = lake.sql("CALL sys.rescale('t', 2, 'h=1')").to_pylist()
    assert row["partitions"] == 2
    (row,) = lake.sql("CALL sys.rescale('t')").to_pylist()
    assert row["partitions"] == 1
    assert left(lake) == ["30 1", "30 2", "31 1"]


def test_condition_chooses_partitions(lake: kt.Lake) -> None:
    lake.sql("INSERT INTO t SELECT d, h, k, v + 1 FROM t")
    files = len(lake.table("t").scan().live.entries)
    asked = "CALL sys.compact(table => 't', where => 'd > ''2026-01-30'' or h = 2')"
    (row,) = lake.sql(asked).to_pylist()
    assert (row["buckets"], row["files_before"], files) == (2, 4, 6)
    (row,) = lake.sql("CALL sys.compact(table => 't', where => 'h > 7')").to_pylist()
    assert row["buckets"] == 0
    with pytest.raises(kt.NotFoundError, match="no column 'k'"):
        lake.sql("CALL sys.compact(table => 't', where => 'k = 1')")
    lake.sql("CREATE TABLE plain (k INT)")
    with pytest.raises(kt.InvalidError, match="has no partitions"):
        lake.sql("CALL sys.compact(table => 'plain', where => 'k = 1')")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("rescale(5)", "table is 5 of type int; expected a string"),
        ("compact('t', partitions => true)", "partitions is True of type bool; expected a string"),
        ("compact_database(1)", "including_databases is 1 of type int"),
        (
            "compact('t', compact_strategy => 'minor', order_by => 'k')",
            "compact_strategy cannot be 'minor'",
        ),
    ],
)
def test_arguments_that_say_nothing_are_refused(call: str, message: str, lake: kt.Lake) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        lake.sql(f"CALL sys.{call}")


@pytest.mark.parametrize(
    ("call", "way_out"),
    [("repair()", "where its folder is"), ("merge_branch('t', 'b')", "fast_forward"),
     ("compact(table => 't', options => 'a=b')", "ALTER TABLE")],
)  # fmt: skip
def test_what_other_engines_know_is_refused_by_name(call: str, way_out: str, lake: kt.Lake) -> None:
    with pytest.raises(kt.UnsupportedError, match=f"sys.{call.partition('(')[0]} .*{way_out}"):
        lake.sql(f"CALL sys.{call}")


def test_tables_whose_names_match_are_compacted(lake: kt.Lake) -> None:
    options = (
        "WITH ('merge-engine' = 'partial-update', 'sequence.field' = 's', 'force-lookup' = 'true')"
    )
    lake.sql(
        f"""
        CREATE TABLE a.kept (k INT, s INT, PRIMARY KEY (k) NOT ENFORCED) {options};
        CREATE TABLE a.x (k INT, PRIMARY KEY (k) NOT ENFORCED);
        CREATE TABLE b.y (k INT, PRIMARY KEY (k) NOT ENFORCED);
        CREATE TABLE c.z (k INT, PRIMARY KEY (k) NOT ENFORCED);
        """
    )
    for name in ("a.x", "b.y", "c.z"):
        lake.sql(f"INSERT INTO {name} VALUES (1); INSERT INTO {name} VALUES (1)")
    found = lake.sql("CALL sys.compact_database('a|b', excluding_tables => '.*y')").to_pylist()
    told = {row["table"]: (row["files_before"], bool(row["left_because"])) for row in found}
    assert told == {"a.kept": (None, True), "a.x": (2, False)}
