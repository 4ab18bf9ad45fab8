"""Statements that change rows at the same moment: no update is lost, nothing is done by halves.

C1 to C7 are the scenarios that engines with row-level changes are held to. Processes are real ones.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import keytide as kt

KEYED = "PRIMARY KEY (id) NOT ENFORCED"
KINDS = {
    "keyed": f"CREATE TABLE t (id INT, a INT, b INT, {KEYED})",
    "vectors": "CREATE TABLE t (id INT, a INT, b INT) WITH ('deletion-vectors.enabled' = 'true')",
    "rewritten": "CREATE TABLE t (id INT, a INT, b INT)",
}
PROCESS = """
import sys, keytide as kt
lake = kt.connect(sys.argv[1])
sys.stdin.readline()
done = 0
for text in sys.argv[2:]:
    try:
        done += lake.sql(text).row_count
    except kt.ConflictError as error:
        assert "run it again" in str(error), error
print(done)
"""


def side_by_side(warehouse: str, *statements: list[str]) -> list[int]:
    """Processes that begin at once, each with statements of its own; the rows that each changed."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, warehouse, *texts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for texts in statements
    ]  # fmt: skip
    answers = []
    threads = [
        threading.Thread(target=lambda p=p: answers.append(p.communicate("\n"))) for p in started
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [process.returncode for process in started] == [0] * len(started)
    return sorted(int(out) for out, _ in answers)


def made(warehouse: str, kind: str, rows: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.sql(f"{KINDS[kind]}; INSERT INTO t VALUES {rows}")
    return lake


def shown(lake: kt.Lake) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in lake.sql("SELECT * FROM t").to_pylist())


@pytest.mark.parametrize("kind", KINDS)
def test_c1_no_increment_is_lost(kind: str, warehouse: str) -> None:
    lake = made(warehouse, kind, "(1, 0, 0), (2, 0, 0)")
    one = [f"UPDATE t SET a = a + 1 WHERE id = {k}" for k in (1, 2, 1, 2)]
    other = [f"UPDATE t SET b = b + 1 WHERE id = {k}" for k in (2, 1, 2, 1)]
    done = side_by_side(warehouse, one, other, one)
    assert sum(row[1] + row[2] for row in shown(lake)) == sum(done)
    assert [row[0] for row in shown(lake)] == [1, 2]
    lake.table("t").verify()


@pytest.mark.parametrize("kind", KINDS)
def test_c2_and_c3_rows_that_differ_and_rows_that_do_not(kind: str, warehouse: str) -> None:
    lake = made(warehouse, kind, "(1, 0, 0), (2, 0, 0), (3, 0, 0)")
    # 1 is only one's, 2 only the other's; 3 is both's, and whoever comes later is seen whole.
    one = ["UPDATE t SET a = 1 WHERE id = 1", "UPDATE t SET a = 5, b = 5 WHERE id = 3"]
    other = ["UPDATE t SET a = 2 WHERE id = 2", "UPDATE t SET a = 6, b = 6 WHERE id = 3"]
    assert side_by_side(warehouse, one, other) == [2, 2]
    first, second, third = shown(lake)
    assert (first, second) == ((1, 1, 0), (2, 2, 0))
    assert third in [(3, 5, 5), (3, 6, 6)]


@pytest.mark.parametrize("kind", KINDS)
def test_c4_insert_beside_a_delete_comes_before_or_after(kind: str, warehouse: str) -> None:
    lake = made(warehouse, kind, "(1, 0, 0), (2, 0, 0)")
    gone, _ = side_by_side(
        warehouse, ["DELETE FROM t WHERE a = 0"], ["INSERT INTO t VALUES (3, 0, 0)"]
    )[::-1]
    assert shown(lake) in [[], [(3, 0, 0)]]
    assert (gone, shown(lake)) in [(3, []), (2, [(3, 0, 0)])]


def test_c5_two_merges_of_one_new_key_insert_it_once(warehouse: str) -> None:
    lake = made(warehouse, "keyed", "(1, 0, 0)")
    merge = (
        "MERGE INTO t USING (SELECT 9 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET "
        "a = t.a + 1 WHEN NOT MATCHED THEN INSERT (id, a, b) VALUES (s.id, 1, 0)"
    )
    done = side_by_side(warehouse, [merge, merge], [merge, merge])
    assert shown(lake) == [(1, 0, 0), (9, sum(done), 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_c6_failure_in_one_split_of_many_changes_nothing(kind: str, warehouse: str) -> None:
    rows = ", ".join(f"({k}, {k}, 0)" for k in range(40))
    lake = made(warehouse, kind, rows)
    lake.sql("INSERT INTO t VALUES (100, 0, 0)")
    before, files = shown(lake), stored(warehouse)
    for text in (
        "UPDATE t SET b = 100 / a",
        "UPDATE t SET b = CAST(100 - a AS TINYINT) * 100 / (a - a)",
    ):
        with pytest.raises(kt.KeytideError):
            lake.sql(f"{text} WHERE CASE WHEN a = 17 THEN error('odd row') ELSE true END")
    assert (shown(lake), stored(warehouse)) == (before, files)


def stored(warehouse: str) -> list[str]:
    found = Path(warehouse).rglob("*")
    return sorted(str(p) for p in found if p.is_file() and "bucket-" in str(p))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["keyed", "vectors"])
def test_c7_task_that_is_tried_again_counts_once(
    kind: str, warehouse: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(warehouse, kind, ", ".join(f"({k}, {k}, 0)" for k in range(20)))
    lake = kt.connect(warehouse, spark=spark)
    assert lake.sql("UPDATE t SET b = 1 WHERE a % 2 = 0").row_count == 10
    # What a task tells may arrive twice; two attempts are the contract suite's.
    from keytide.dml.keyed import KeyedMetadata

    finish = KeyedMetadata.finish_update
    monkeypatch.setattr(
        KeyedMetadata, "finish_update", lambda m, s, t, f: finish(m, s, t, [*f, *f])
    )
    assert lake.sql("UPDATE t SET b = 2 WHERE a % 2 = 1").row_count == 10
    assert shown(lake) == [(k, k, 1 + k % 2) for k in range(20)]
