"""DELETE and UPDATE."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

import keytide as kt
from keytide.commit.committer import Committer
from table_rows import answer

TABLES = """
CREATE TABLE t (id INT, v STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)
WITH ('bucket' = '2');
INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, NULL, 30)
"""


def rows(lake: kt.Lake) -> list[tuple[Any, ...]]:
    return answer(lake, "SELECT * FROM t ORDER BY id")


@pytest.mark.parametrize(
    ("text", "count", "left"),
    [
        ("DELETE FROM t WHERE id = 2", 1, [(1, "a", 10), (3, None, 30)]),
        ("DELETE FROM t AS x WHERE x.v IS NULL OR x.n < 15", 2, [(2, "b", 20)]),
        ("DELETE FROM t WHERE id IN (SELECT id + 1 FROM t)", 2, [(1, "a", 10)]),
        ("DELETE FROM t", 3, []),
        ("DELETE FROM t WHERE id = 9", 0, [(1, "a", 10), (2, "b", 20), (3, None, 30)]),
        (
            "UPDATE t SET n = n + 1, v = upper(v) WHERE id < 3",
            2,
            [(1, "A", 11), (2, "B", 21), (3, None, 30)],
        ),
        ("UPDATE t SET V = NULL", 3, [(1, None, 10), (2, None, 20), (3, None, 30)]),
    ],
)
def test_rows_that_meet_the_condition_change(
    lake: kt.Lake, text: str, count: int, left: list[tuple[Any, ...]]
) -> None:
    assert lake.sql(text).row_count == count
    assert rows(lake) == left


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("(p = 1 AND x + 0 = 5) OR (p = 2 AND x + 0 = 6)", [(1, 6), (2, 5)]),
        ("p = 1 OR (p = 2 AND x + 0 = 6)", [(2, 5)]),
        ("p = 1 OR p = 2 AND p < 3", []),
    ],
)
def test_condition_that_names_whole_partitions_beside_others_deletes_its_rows_only(
    lake: kt.Lake, where: str, left: list[tuple[int, int]]
) -> None:
    lake.sql("CREATE TABLE a (p INT, x INT) PARTITIONED BY (p)")
    lake.sql("INSERT INTO a VALUES (1, 5), (1, 6), (2, 5), (2, 6)")
    assert lake.sql(f"DELETE FROM a WHERE {where}").row_count == 4 - len(left)
    found = lake.sql("SELECT p, x FROM a ORDER BY p, x").to_pylist()
    assert [tuple(row.values()) for row in found] == left


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("UPDATE t SET id = 5", kt.InvalidError, "two rows would have the primary key"),
        ("UPDATE t SET nobody = 5", kt.NotFoundError, "nobody"),
        ("UPDATE t SET n = 'x'", kt.InvalidError, "column 'n'"),
        ("UPDATE t SET n = 3000000000", kt.InvalidError, "column 'n'"),
        ("DELETE FROM t WHERE nobody = 1", kt.InvalidError, "line 1, column 21"),
        ("DELETE FROM nobody", kt.NotFoundError, "nobody"),
        ("DELETE t", kt.InvalidError, "line 1"),
    ],
)
def test_wrong_statement_changes_nothing(
    lake: kt.Lake, text: str, kind: type[Exception], message: str
) -> None:
    before = rows(lake)
    with pytest.raises(kind) as caught:
        lake.sql(text)
    assert message in str(caught.value)
    assert rows(lake) == before


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ("'merge-engine' = 'aggregation'", "UPDATE u SET v = 1", "aggregation"),
        ("'merge-engine' = 'aggregation'", "DELETE FROM u", "remove-record-on-delete"),
        ("'merge-engine' = 'first-row'", "DELETE FROM u", "first-row"),
        ("'merge-engine' = 'partial-update'", "DELETE FROM u", "remove-record-on-delete"),
        ("'merge-engine' = 'partial-update'", "UPDATE u SET v = NULL", "NULL"),
        (
            "'merge-engine' = 'partial-update', 'fields.g.sequence-group' = 'v'",
            "UPDATE u SET v = 1",
            "sequence groups",
        ),
        (
            "'merge-engine' = 'partial-update', 'fields.g.sequence-group' = 'v'",
            "DELETE FROM u",
            "remove-record-on-sequence-group",
        ),
        ("'sequence.field' = 'g'", "UPDATE u SET g = 1", "older than the stored value"),
    ],
)
def test_engine_that_would_not_store_the_change_refuses_it(
    lake: kt.Lake, options: str, text: str, message: str
) -> None:
    lake.sql(f"CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, v INT, g INT) WITH ({options})")
    lake.sql("INSERT INTO u VALUES (1, 2, 3)")
    with pytest.raises(kt.KeytideError, match=message):
        lake.sql(text)
    assert lake.sql("SELECT v, g FROM u").to_pylist() == [{"v": 2, "g": 3}]


@pytest.mark.parametrize(
    ("options", "text", "left"),
    [
        ("'merge-engine' = 'aggregation', 'aggregation.remove-record-on-delete' = 'TRUE'",
         "DELETE FROM u", []),
        ("'merge-engine' = 'partial-update', 'partial-update.remove-record-on-delete' = 'true'",
         "DELETE FROM u", []),
        ("'merge-engine' = 'partial-update', 'fields.g.sequence-group' = 'v', "
         "'partial-update.remove-record-on-sequence-group' = 'g'", "DELETE FROM u", []),
        ("'fields.g.sequence-group' = 'v'", "UPDATE u SET v = 1", [{"v": 1, "g": 3}]),
        ("'sequence.field' = 'g'", "UPDATE u SET g = 3, v = 9", [{"v": 9, "g": 3}]),
        ("'sequence.field' = 'g'", "UPDATE u SET g = g + v", [{"v": 2, "g": 5}]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_engine_that_stores_the_change_takes_it(
    lake: kt.Lake, options: str, text: str, left: list[dict[str, int]]
) -> None:
    lake.sql(f"CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, v INT, g INT) WITH ({options})")
    lake.sql("INSERT INTO u VALUES (1, 2, 3)")
    lake.sql(text)
    assert lake.sql("SELECT v, g FROM u").to_pylist() == left


def test_row_deleted_with_its_sequence_stays_deleted_for_older_rows(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, ts INT) WITH ('sequence.field' = 'ts'); "
        "INSERT INTO u VALUES (1, 5); DELETE FROM u; INSERT INTO u VALUES (1, 4)"
    )
    assert lake.sql("SELECT * FROM u").row_count == 0
    lake.sql("INSERT INTO u VALUES (1, 6)")
    assert lake.sql("SELECT * FROM u").row_count == 1


def test_update_sees_what_another_writer_committed_meanwhile(
    lake: kt.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lake.table("t")
    publish, rivals = Committer.publish, [{"id": 1, "v": "rival", "n": 100}]

    def publish_after_the_rival(self: Committer, *arguments: Any) -> Any:
        if rivals:
            other.write([rivals.pop()])
        return publish(self, *arguments)

    monkeypatch.setattr(Committer, "publish", publish_after_the_rival)
    lake.sql("UPDATE t SET n = n + 1 WHERE id = 1")

    assert rows(lake)[0] == (1, "rival", 101)


def test_table_that_drops_deletes_refuses_them(lake: kt.Lake) -> None:
    lake.sql(
        """
        CREATE TABLE d (id INT, at INT, PRIMARY KEY (id) NOT ENFORCED)
        WITH ('ignore-delete' = 'true', 'watermark.key' = 'at');
        INSERT INTO d VALUES (1, 10)
        """
    )
    for text in ("DELETE FROM d", "UPDATE d SET id = 2"):
        with pytest.raises(kt.UnsupportedError, match="'ignore-delete' drops deletes"):
            lake.sql(text)
    assert lake.sql("SELECT * FROM d").to_pylist() == [{"id": 1, "at": 10}]


def test_row_that_a_merge_inserts_may_have_the_key_of_one_that_it_deletes(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, v INT); "
        "INSERT INTO u VALUES (1, 1), (2, 2)"
    )
    done = lake.sql(
        "MERGE INTO u USING (SELECT 1 AS old, 0 AS k UNION ALL SELECT 9, 1) s ON u.k = s.old "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, 7)"
    )
    assert done.row_count == 2
    left = lake.sql("SELECT k, v FROM u ORDER BY k").to_pylist()
    assert left == [{"k": 1, "v": 7}, {"k": 2, "v": 2}]


MERGES = {
    "deletes and inserts a key": (
        "MERGE INTO m USING s ON m.k = s.k AND m.f "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (k, f) VALUES (s.k, true)",
        [(1, True), (3, True)],
    ),
    "updates, deletes and inserts": (
        "MERGE INTO m USING s ON m.k = s.k "
        "WHEN MATCHED THEN UPDATE SET f = NOT m.f "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (k, f) VALUES (s.k, true)",
        [(1, True), (3, True)],
    ),
}


@pytest.mark.parametrize("mode", ["none", "full", "partial"])
@pytest.mark.parametrize("name", MERGES)
def test_merge_leaves_the_same_rows_in_every_mode(mode: str, name: str) -> None:
    lake = kt.connect("memory://" + uuid4().hex)
    text, left = MERGES[name]
    lake.sql(
        "CREATE TABLE m (k INT, f BOOLEAN, PRIMARY KEY (k) NOT ENFORCED) "
        f"WITH ('upsert.mode' = '{mode}'); INSERT INTO m VALUES (1, false), (2, true); "
        "CREATE TABLE s (k INT); INSERT INTO s VALUES (1), (3)"
    )
    lake.sql(text)
    found = lake.sql("SELECT k, f FROM m ORDER BY k").to_pylist()
    assert [tuple(row.values()) for row in found] == left
