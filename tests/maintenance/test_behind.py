"""Compactions behind the writers of a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.commit.transaction import Transaction
from keytide.compaction import compact
from keytide.errors import ConflictError, DataError, KeytideWarning
from keytide.format.data_file import FileReader
from keytide.format.snapshot import CommitKind
from keytide.maintenance import background
from keytide.maintenance.background import BACKGROUND
from keytide.options import TableOptions
from table_rows import by_key

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
OPTIONS = {
    "bucket": "1",
    "num-sorted-run.compaction-trigger": "3",
    "compaction.background.min-size": "0 b",
    "compaction.background.min-runs": "3",
}


class Gate:
    """Compactions behind writers, which wait until it opens; `seen` has the buckets of each."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.closes_again = False
        self.came = threading.Semaphore(0)
        self.seen: list[int] = []
        self.under_way = self.most_under_way = 0

    def __call__(self, table: Any, buckets: Any, runner: Any) -> Any:
        self.seen.append(len(buckets))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.came.release()
        assert self.opened.wait(60)
        if self.closes_again:
            self.opened.clear()
        try:
            return _COMPACT(table, buckets, runner)
        finally:
            self.under_way -= 1


_COMPACT = background.compact_due
_READ = FileReader.read


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(background, "compact_due", made)
    yield made
    made.opened.set()
    BACKGROUND.wait_for_all()


def table_in(warehouse: str, **options: str) -> kt.Table:
    return kt.connect(warehouse).create_table("t", SCHEMA, ["k"], options={**OPTIONS, **options})


def upsert(table: kt.Table, *numbers: int) -> None:
    for number in numbers:
        table.write([{"k": key, "v": number} for key in range(number, number + 3)])


def expected(last: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for number in range(last + 1):
        found |= dict.fromkeys(range(number, number + 3), number)
    return found


def kinds(table: kt.Table) -> str:
    """The commits of a table, `W` for a write and `c` for a compaction."""
    return "".join(
        "c" if s.commit_kind is CommitKind.COMPACT else "W" for s in table.metadata.snapshots()
    )


def test_a_write_returns_while_what_it_made_due_is_compacted(warehouse: str, gate: Gate) -> None:
    table = table_in(warehouse)
    upsert(table, 0, 1, 2)
    assert gate.came.acquire(timeout=60)
    assert kinds(table) == "WWW"
    assert by_key(table) == expected(2)
    gate.opened.set()
    table.close()
    assert kinds(table) == "WWWc"
    assert by_key(table) == expected(2)


def test_one_compaction_of_a_table_at_a_time_and_the_rest_together(
    warehouse: str, gate: Gate
) -> None:
    with table_in(warehouse) as table:
        upsert(table, 0, 1, 2)
        assert gate.came.acquire(timeout=60)
        upsert(table, 3, 4, 5, 6)
        assert gate.seen == [1]
        gate.opened.set()
    assert gate.most_under_way == 1
    assert len(gate.seen) == 2  # the first, and all that came meanwhile
    assert by_key(table) == expected(6)
    assert not BACKGROUND.is_busy(table.uri)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between writes is long enough to begin what is put off."""
    monkeypatch.setattr(background, "_REST_S", 3600)


@pytest.mark.usefixtures("restless")
def test_what_is_due_of_few_runs_is_put_off_until_it_is_worth_a_compaction(warehouse: str) -> None:
    table = table_in(warehouse, **{"compaction.background.min-runs": "6"})
    upsert(table, 0, 1, 2, 3, 4)
    assert kinds(table) == "WWWWW"
    upsert(table, 5)
    table.close()
    assert kinds(table) == "WWWWWWc"
    assert by_key(table) == expected(5)


def test_what_is_put_off_is_compacted_when_no_more_writes_come(
    warehouse: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_REST_S", 0.01)
    table = table_in(warehouse, **{"compaction.background.min-runs": "6"})
    upsert(table, 0, 1, 2)
    assert gate.came.acquire(timeout=60)
    assert gate.seen == [1]


@pytest.mark.usefixtures("restless")
def test_what_is_put_off_is_compacted_when_the_table_is_closed(warehouse: str) -> None:
    table = table_in(warehouse, **{"compaction.background.min-runs": "6"})
    upsert(table, 0, 1, 2, 3)
    table.close()
    assert kinds(table) == "WWWWc"
    assert by_key(table) == expected(3)


@pytest.mark.usefixtures("restless")
def test_whoever_takes_a_table_in_hand_does_not_begin_what_is_put_off(
    warehouse: str, gate: Gate
) -> None:
    table = table_in(warehouse, **{"compaction.background.min-runs": "6"})
    upsert(table, 0, 1, 2, 3)
    table.compact(full=True)
    table.close()
    assert not gate.seen
    assert kinds(table) == "WWWWc"


@pytest.mark.parametrize(
    ("options", "begins_at", "stops_at"),
    [
        ("", 20, 60),
        ("trigger=2", 8, 24),
        ("stop=7", 7, 7),
        ("min=3", 5, 60),
        ("min=70", 60, 60),
        ("min=50 stop=80", 50, 80),
        ("background=false", 8, 8),
    ],
)
def test_runs_at_which_compactions_begin_and_writers_wait(
    options: str, begins_at: int, stops_at: int
) -> None:
    keys = {
        "trigger": "num-sorted-run.compaction-trigger",
        "stop": "num-sorted-run.stop-trigger",
        "min": "compaction.background.min-runs",
        "background": "compaction.background",
    }
    given = [option.split("=") for option in options.split()]
    parsed = TableOptions.parse({keys[name]: value for name, value in given})
    assert parsed.background_compaction_runs == begins_at
    assert parsed.stop_trigger_runs == stops_at


def test_tables_do_not_wait_for_each_other(lake: kt.Lake, gate: Gate) -> None:
    tables = [lake.create_table(name, SCHEMA, ["k"], options=OPTIONS) for name in ("t", "u")]
    for table in tables:
        upsert(table, 0, 1, 2)
        assert gate.came.acquire(timeout=60)
    assert gate.under_way == 2
    gate.opened.set()
    lake.close()
    assert [kinds(table) for table in tables] == ["WWWc", "WWWc"]


def test_a_writer_waits_where_runs_come_faster_than_they_are_merged(
    warehouse: str, gate: Gate
) -> None:
    table = table_in(warehouse, **{"num-sorted-run.stop-trigger": "5"})
    upsert(table, 0, 1, 2)
    assert gate.came.acquire(timeout=60)
    upsert(table, 3, 4)
    last = threading.Thread(target=upsert, args=[table, 5])
    last.start()
    last.join(0.5)
    assert last.is_alive(), "the sixth run is one too many"
    assert kinds(table) == "WWWWWW", "its rows are there all the same"
    gate.opened.set()
    last.join(60)
    assert not last.is_alive()
    assert by_key(table) == expected(5)
    assert table.stored.newest_files().buckets.popitem()[1].runs <= 3


def test_a_writer_waits_for_one_compaction_not_for_all_that_is_due(
    warehouse: str, gate: Gate
) -> None:
    table = table_in(warehouse, **{"num-sorted-run.stop-trigger": "3"})
    gate.closes_again = True
    upsert(table, 0, 1, 2)
    assert gate.came.acquire(timeout=60)
    last = threading.Thread(target=upsert, args=[table, 3])
    last.start()
    last.join(0.5)
    assert last.is_alive(), "the fourth run is one too many"
    gate.opened.set()
    last.join(60)
    assert not last.is_alive()
    assert gate.came.acquire(timeout=60)
    assert BACKGROUND.is_busy(table.uri), "what the fourth made due is not compacted yet"
    gate.closes_again = False


def test_a_compaction_on_local_disk_takes_one_thread_however_many_runs_it_reads(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: set[str] = set()

    def read(reader: FileReader, *args: Any) -> Any:
        readers.add(threading.current_thread().name)
        return _READ(reader, *args)

    with table_in(warehouse, **{"compaction.background.min-runs": "8"}) as table:
        upsert(table, *range(7))
        monkeypatch.setattr(FileReader, "read", read)
        upsert(table, 7)
    assert len(readers) == 1


def test_a_failure_behind_a_writer_is_a_warning_at_the_next_call(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise DataError("the disk is full")

    table = table_in(warehouse)
    with monkeypatch.context() as patch:
        patch.setattr(background, "compact_due", fail)
        upsert(table, 0, 1, 2)
        with pytest.warns(KeytideWarning, match=r"default\.t: the rows are written.*disk is full"):
            table.close()
    upsert(table, 3)
    table.close()  # warns no more
    assert kinds(table) == "WWWWc"
    assert by_key(table) == expected(3)


def test_a_table_whose_folder_somebody_deleted_needs_no_warning(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(table: Any, *_: Any) -> Any:
        shutil.rmtree(table.uri)
        raise DataError("a file is missing")

    table = table_in(warehouse)
    monkeypatch.setattr(background, "compact_due", delete)
    with warnings.catch_warnings(action="error"):
        upsert(table, 0, 1, 2)
        table.close()


def test_a_panic_behind_a_writer_is_a_warning_and_later_writes_compact(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        pass

    def fail(*_: Any) -> Any:
        raise Panic("an index is out of bounds")

    table = table_in(warehouse)
    with monkeypatch.context() as patch:
        patch.setattr(background, "compact_due", fail)
        upsert(table, 0, 1, 2)
        with pytest.warns(KeytideWarning, match="out of bounds"):
            table.close()
    upsert(table, 3)
    table.close()
    assert kinds(table) == "WWWWc"


@pytest.mark.parametrize(
    "options",
    [
        {"compaction.background": "false"},
        {"compaction.background.min-size": "1 mb"},
        {"deletion-vectors.enabled": "true"},
        {"changelog-producer": "lookup"},
    ],
)
def test_in_the_write_where_options_say_so_or_rows_would_be_hidden(
    warehouse: str, gate: Gate, options: dict[str, str]
) -> None:
    table = table_in(warehouse, **options)
    upsert(table, 0, 1, 2)
    assert not gate.seen
    assert "c" in kinds(table)
    assert by_key(table) == expected(2)


VERBS = {
    "compact": lambda table: table.compact(full=True),
    "rescale": lambda table: table.rescale(),
    "rollback": lambda table: table.rollback_to(2),
    "drop": lambda table: kt.connect(table.uri.split("/default.db")[0]).drop_table("t"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_whoever_takes_a_table_in_hand_waits_for_what_is_compacted(
    warehouse: str, gate: Gate, verb: str
) -> None:
    table = table_in(warehouse)
    upsert(table, 0, 1, 2)
    assert gate.came.acquire(timeout=60)
    done = threading.Thread(target=VERBS[verb], args=[table])
    done.start()
    done.join(0.3)
    assert done.is_alive()
    gate.opened.set()
    done.join(60)
    assert not done.is_alive()
    if verb == "drop":
        assert kt.connect(warehouse).tables() == []
    else:
        assert by_key(table) == expected(1 if verb == "rollback" else 2)


class Made:
    """Compactions behind writers, which wait with what they made before they commit it."""

    def __init__(self) -> None:
        self.came, self.opened = threading.Event(), threading.Event()

    def __call__(self, *given: Any) -> Any:
        found = _RUN_TASKS(*given)
        self.came.set()
        assert self.opened.wait(60)
        return found


_RUN_TASKS = compact._run_tasks


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    made = Made()
    monkeypatch.setattr(compact, "_run_tasks", made)
    yield made
    made.opened.set()
    BACKGROUND.wait_for_all()


def branch_with_a_compaction(table: kt.Table) -> kt.Table:
    """A branch that has one under way."""
    upsert(table, 0)
    table.create_branch("b")
    branch = table.branch("b")
    upsert(branch, 1, 2)
    return branch


@pytest.mark.parametrize("line", ["the table", "a branch"])
def test_files_of_a_compaction_under_way_are_no_orphans_of_its_process(
    warehouse: str, made: Made, line: str
) -> None:
    table = table_in(warehouse)
    if line == "a branch":
        branch_with_a_compaction(table)
    else:
        upsert(table, 0, 1, 2)
    assert made.came.wait(60)
    time.sleep(0.005)
    before = time.time_ns() // 1_000_000
    cleaned = threading.Thread(
        target=table.remove_orphan_files, args=[before], kwargs={"dry_run": False}
    )
    cleaned.start()
    cleaned.join(0.3)
    assert cleaned.is_alive()
    made.opened.set()
    cleaned.join(60)
    BACKGROUND.wait_for_all()
    there = kt.open_table(table.uri)
    there = there.branch("b") if line == "a branch" else there
    assert kinds(there) == "WWWc"
    assert by_key(there) == expected(2)


@pytest.mark.usefixtures("restless")
def test_cleaning_up_leaves_what_is_put_off_to_its_time(warehouse: str) -> None:
    table = table_in(warehouse, **{"compaction.background.min-runs": "6"})
    upsert(table, 0, 1, 2)
    table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)
    assert kinds(table) == "WWW"
    table.close()
    assert kinds(table) == "WWWc"


@pytest.mark.parametrize("statement", [
    "DROP TABLE t", "CALL sys.purge_files('t')", "CALL sys.delete_branch('t', 'b')",
    "CALL sys.rename_branch('t', 'b', 'c')",
])  # fmt: skip
def test_whoever_takes_a_branch_away_waits_for_what_is_compacted_of_it(
    warehouse: str, made: Made, statement: str
) -> None:
    table = table_in(warehouse)
    branch_with_a_compaction(table)
    assert made.came.wait(60)
    done = threading.Thread(target=kt.connect(warehouse).sql, args=[statement])
    done.start()
    done.join(0.3)
    assert done.is_alive()
    made.opened.set()
    done.join(60)
    BACKGROUND.wait_for_all()
    assert not list(Path(table.uri).rglob("branch-b"))


STATEMENTS = {
    "UPDATE": "UPDATE t SET v = v + 10 WHERE k = 1",
    "DELETE": "DELETE FROM t WHERE k = 1",
    "MERGE": "MERGE INTO t USING (SELECT 1 AS k, 7 AS v) s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.v",
}


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("meanwhile", ["a compaction", "a compaction and a write"])
def test_statement_does_not_conflict_with_what_is_compacted_behind_it(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, statement: str, meanwhile: str
) -> None:
    options = {"compaction.background": "false", "commit.max-retries": "1"}
    table = table_in(warehouse, **options)
    upsert(table, 0, 1)
    other = kt.connect(warehouse).table("t")
    build_on = Transaction.build_on

    def beside_others(self: Transaction, **named: Any) -> Any:
        assert other.compact(full=True).snapshot_id
        if "write" in meanwhile:
            other.write([{"k": 9, "v": 9}])
        return build_on(self, **named)

    monkeypatch.setattr(Transaction, "build_on", beside_others)
    if "write" in meanwhile:
        with pytest.raises(ConflictError):
            kt.connect(warehouse).sql(STATEMENTS[statement])
        return
    kt.connect(warehouse).sql(STATEMENTS[statement])
    wanted = expected(1) | {"UPDATE": {1: 11}, "MERGE": {1: 7}, "DELETE": {}}[statement]
    if statement == "DELETE":
        del wanted[1]
    assert by_key(table) == wanted


PROGRAM = """
import sys
import keytide as kt
table = kt.connect(sys.argv[1]).table("t")
for number in range(3):
    table.write([{"k": number, "v": number}])
"""


@pytest.mark.takes_turns
def test_the_end_of_the_process_waits(warehouse: str) -> None:
    table = table_in(warehouse)
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM, warehouse], check=True)
    assert kinds(table) == "WWWc"
    assert by_key(table) == {0: 0, 1: 1, 2: 2}


def test_a_process_that_dies_loses_no_rows_and_the_next_one_compacts(warehouse: str) -> None:
    table = table_in(warehouse)
    dying = PROGRAM.replace("import sys", "import os, sys") + "os._exit(0)\n"
    subprocess.run([sys.executable, "-c", dying, warehouse], check=True)
    assert by_key(table) == {0: 0, 1: 1, 2: 2}
    upsert(table, 0)
    table.close()
    assert kinds(table).endswith("Wc")
    assert by_key(table) == expected(0)
    assert not table.verify().findings


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_knows_nothing_of_threads_that_it_has_not() -> None:
    copy = background.BackgroundCompactions()
    copy._tables["there"] = background._Table(threading.current_thread())
    copy.forget()
    assert not copy.is_busy("there")
