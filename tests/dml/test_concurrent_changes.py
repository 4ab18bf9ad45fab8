"""Statements that change rows at the same moment: no update is lost, nothing is done by halves.

C1 to C7 are the scenarios that engines with row-level changes are held to. Processes are real ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from databases import SomeDatabase

import keytide as kt
from table_rows import rows

KEYED = "PRIMARY KEY (id) NOT ENFORCED"
KINDS = {
    "keyed": f"CREATE TABLE t (id INT, a INT, b INT, {KEYED})",
    "vectors": "CREATE TABLE t (id INT, a INT, b INT) WITH ('deletion-vectors.enabled' = 'true')",
    "rewritten": "CREATE TABLE t (id INT, a INT, b INT)",
}
Process = subprocess.Popen[str]
DATABASES = ["sqlite", "postgres", "sqlite-serializable", "postgres-serializable"]
PROCESS = """
import json, sys, keytide as kt
while job := sys.stdin.readline():
    warehouse, place, isolation, texts = json.loads(job)
    lake = kt.connect(warehouse)
    if place:
        lake.attach("db", place, isolation=isolation)
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    for text in texts:
        try:
            done += lake.sql(text).row_count
        except kt.ConflictError as error:
            assert "run it again" in str(error), error
    print(done, flush=True)
"""


ALL_DATABASES = [pytest.param(kind, marks=pytest.mark.soak) for kind in DATABASES]
KINDS_AND_DATABASES = pytest.mark.parametrize("kind", [*KINDS, *ALL_DATABASES])
"""Lake tables, and with `make soak` databases too."""


class Processes:
    """Processes that stay from test to test, as most of what each test asks is to start them."""

    def __init__(self) -> None:
        self._started: list[Process] = []

    def some(self, count: int) -> list[Process]:
        while len(self._started) < count:
            self._started.append(start(PROCESS))
        return self._started[:count]

    def end(self) -> None:
        for process in self._started:
            process.communicate(timeout=120)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.end()


def start(script: str) -> Process:
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def next_line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@dataclass(frozen=True)
class Table:
    """The table that statements call `t`, in a lake or in a database that is attached to it."""

    lake: kt.Lake
    warehouse: str
    processes: Processes
    place: str = ""
    isolation: str = ""

    def sql(self, text: str) -> Any:
        return self.lake.sql(self.spelt(text))

    def spelt(self, text: str) -> str:
        return re.sub(r"\b(UPDATE|INTO|FROM) t\b", r"\1 db.t", text) if self.place else text

    def shown(self) -> list[tuple[Any, ...]]:
        return rows(self.sql("SELECT * FROM t"))

    def job(self, *texts: str) -> str:
        """What a process reads: where the table is, and statements."""
        return json.dumps(
            [self.warehouse, self.place, self.isolation, list(map(self.spelt, texts))]
        )

    def side_by_side(self, *statements: list[str]) -> list[int]:
        """Processes that begin at once, each with its statements; the rows that each changed."""
        asked = self.processes.some(len(statements))
        for process, texts in zip(asked, statements, strict=True):
            tell(process, self.job(*texts))
        assert [next_line(process) for process in asked] == ["ready"] * len(asked)
        for process in asked:
            tell(process, "go")
        return sorted(int(next_line(process)) for process in asked)


Make = Callable[[str, str], Table]


@pytest.fixture
def made(warehouse: str, processes: Processes, request: pytest.FixtureRequest) -> Make:
    """Makes a table of a kind with rows."""

    def make(kind: str, rows: str) -> Table:
        lake = kt.connect(warehouse)
        if kind in KINDS:
            lake.sql(f"{KINDS[kind]}; INSERT INTO t VALUES {rows}")
            return Table(lake, warehouse, processes)
        name, _, isolation = kind.partition("-")
        database: SomeDatabase = request.getfixturevalue(name)
        database.run("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER)")
        lake.attach("db", database.place, isolation=isolation or "snapshot")
        table = Table(lake, warehouse, processes, database.place, isolation or "snapshot")
        table.sql(f"INSERT INTO t VALUES {rows}")
        return table

    return make


@KINDS_AND_DATABASES
def test_c1_no_increment_is_lost(kind: str, made: Make) -> None:
    table = made(kind, "(1, 0, 0), (2, 0, 0)")
    one = [f"UPDATE t SET a = a + 1 WHERE id = {k}" for k in (1, 2, 1, 2)]
    other = [f"UPDATE t SET b = b + 1 WHERE id = {k}" for k in (2, 1, 2, 1)]
    done = table.side_by_side(one, other, one)
    assert sum(row[1] + row[2] for row in table.shown()) == sum(done)
    assert [row[0] for row in table.shown()] == [1, 2]
    if kind in KINDS:
        assert table.lake.table("t").verify().is_healthy


@KINDS_AND_DATABASES
def test_c2_and_c3_rows_that_differ_and_rows_that_do_not(kind: str, made: Make) -> None:
    table = made(kind, "(1, 0, 0), (2, 0, 0), (3, 0, 0)")
    # 1 is only one's, 2 only the other's; 3 is both's, and whoever comes later is seen whole.
    one = ["UPDATE t SET a = 1 WHERE id = 1", "UPDATE t SET a = 5, b = 5 WHERE id = 3"]
    other = ["UPDATE t SET a = 2 WHERE id = 2", "UPDATE t SET a = 6, b = 6 WHERE id = 3"]
    assert table.side_by_side(one, other) == [2, 2]
    first, second, third = table.shown()
    assert (first, second) == ((1, 1, 0), (2, 2, 0))
    assert third in [(3, 5, 5), (3, 6, 6)]


@KINDS_AND_DATABASES
@pytest.mark.parametrize("where", ["a = 0", pytest.param("a + 0 = 0", marks=pytest.mark.soak)])
def test_c4_insert_beside_a_delete_comes_before_or_after(kind: str, made: Make, where: str) -> None:
    table = made(kind, "(1, 0, 0), (2, 0, 0)")
    gone, _ = table.side_by_side(
        [f"DELETE FROM t WHERE {where}"], ["INSERT INTO t VALUES (3, 0, 0)"]
    )[::-1]
    assert (gone, table.shown()) in [(3, []), (2, [(3, 0, 0)])]


@pytest.mark.parametrize("kind", ["keyed", *ALL_DATABASES])
def test_c5_two_merges_of_one_new_key_insert_it_once(kind: str, made: Make) -> None:
    table = made(kind, "(1, 0, 0)")
    merge = (
        "MERGE INTO t AS t USING (SELECT 9 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET "
        "a = t.a + 1 WHEN NOT MATCHED THEN INSERT (id, a, b) VALUES (s.id, 1, 0)"
    )
    done = table.side_by_side([merge, merge], [merge, merge])
    assert table.shown() == [(1, 0, 0), (9, sum(done), 0)]


@pytest.mark.parametrize(
    "kind",
    ["postgres-serializable", pytest.param("sqlite-serializable", marks=[pytest.mark.soak])],
)
def test_c5_what_one_reads_and_the_other_writes_comes_one_after_the_other(
    kind: str, made: Make
) -> None:
    table = made(kind, "(1, 0, 0), (2, 0, 0), (3, 0, 0)")
    # Whoever comes first takes it; with `snapshot` all would find it free.
    take = "UPDATE t SET a = 1 WHERE id = {} AND (SELECT sum(a) FROM t) = 0"
    assert sum(table.side_by_side(*([take.format(k)] for k in (1, 2, 3)))) == 1
    assert sum(row[1] for row in table.shown()) == 1


@pytest.mark.parametrize("kind", [*KINDS, "sqlite", "postgres"])
def test_c6_failure_in_one_split_of_many_changes_nothing(kind: str, made: Make) -> None:
    rows = ", ".join(f"({k}, {k}, 0)" for k in range(40))
    table = made(kind, rows)
    table.sql("INSERT INTO t VALUES (100, 0, 0)")
    before, files = table.shown(), stored(table.warehouse)
    for text in (
        "UPDATE t SET b = 100 / a",
        "UPDATE t SET b = CAST(100 - a AS TINYINT) * 100 / (a - a)",
    ):
        with pytest.raises(kt.KeytideError):
            table.sql(f"{text} WHERE CASE WHEN a = 17 THEN error('odd row') ELSE true END")
    assert (table.shown(), stored(table.warehouse)) == (before, files)


def stored(warehouse: str) -> list[str]:
    found = Path(warehouse).rglob("*")
    return sorted(str(p) for p in found if p.is_file() and "bucket-" in str(p))


DYING = f"""
from keytide.dml import adbc, database_changes
import time
def commit(session):
    print("about to commit", flush=True)
    time.sleep(600)
adbc.commit = database_changes.commit = commit
{PROCESS}"""


@pytest.mark.takes_turns
@pytest.mark.parametrize("kind", ["sqlite", "postgres", *ALL_DATABASES[2:]])
@pytest.mark.parametrize(
    "text",
    ["INSERT INTO t VALUES (7, 7, 7)",
     *(pytest.param(text, marks=[pytest.mark.soak])
       for text in ("UPDATE t SET a = a + 1", "UPDATE t SET id = 3 - id"))],
)  # fmt: skip
def test_c6_process_that_dies_before_its_commit_changes_nothing_and_holds_nothing(
    kind: str, made: Make, text: str
) -> None:
    table = made(kind, "(1, 0, 0), (2, 0, 0)")
    process = start(DYING)
    tell(process, table.job(text))
    assert next_line(process) == "ready"
    tell(process, "go")
    assert next_line(process) == "about to commit"
    process.kill()
    process.communicate()
    assert table.shown() == [(1, 0, 0), (2, 0, 0)]
    assert table.sql(text).row_count in (1, 2)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["keyed", "vectors", "sqlite", "postgres"])
def test_c7_task_that_is_tried_again_counts_once(
    kind: str, made: Make, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(kind, ", ".join(f"({k}, {k}, 0)" for k in range(20)))
    lake = kt.connect(table.warehouse, spark=spark)
    if table.place:
        lake.attach("db", table.place)
    table = replace(table, lake=lake)
    assert table.sql("UPDATE t SET b = 1 WHERE a % 2 = 0").row_count == 10
    # What a task tells may arrive twice; two attempts are the contract suite's.
    from keytide.dml import engine

    told, twice = engine._fragments, []

    def told_twice(results: Any) -> Any:
        twice.append(len(results))
        return [*told(results), *told(results)]

    monkeypatch.setattr(engine, "_fragments", told_twice)
    assert table.sql("UPDATE t SET b = 2 WHERE a % 2 = 1").row_count == 10
    assert twice
    assert table.shown() == [(k, k, 1 + k % 2) for k in range(20)]
