"""Whatever a statement reads of a table, it reads of one snapshot, whoever commits meanwhile.

Snapshot n of the table `t` has the keys 1 to n, all with v = n; each commit brings one file. So
whatever is told of it tells n. Another process has its commits land between the requests of the
statement, which knows the table by another path: nothing that this process remembers is shared.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from busy import Others, busy_store
from keytide.sql.result import Result
from keytide.store import open_store

FIRST, LAST = 3, 60
FILES = "default.db/t/snapshot"

TABLES = f"""
CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)
WITH ('write-only' = 'true', 'snapshot.num-retained.min' = '{LAST}');
CREATE TABLE told (a INT, b INT);
"""
WAYS = {
    "count": "SELECT count(*) FROM t",
    "value": "SELECT max(v) FROM t",
    "some": "SELECT min(v) FROM t WHERE k <= 3",
    "spelled": "SELECT max(v) FROM `default`.T",
    "joined": "SELECT count(*) FROM t AS x JOIN t AS y ON x.k = y.k AND x.v = y.v",
    "nested": "SELECT max(k) FROM (SELECT * FROM t WHERE v IN (SELECT max(v) FROM t))",
    "exists": "SELECT max(v) FROM t AS x WHERE EXISTS (SELECT 1 FROM t AS y WHERE y.v = x.v)",
    "with": "WITH w AS (SELECT * FROM t) SELECT max(w.v) FROM w JOIN w AS other ON w.v = other.v",
    "time": "SELECT max(v) FROM t FOR TIMESTAMP AS OF '2999-01-01'",
    "since": "SELECT max(v) FROM t /*+ OPTIONS('scan.timestamp-millis' = '32503680000000') */",
    "snapshots": "SELECT max(snapshot_id) FROM t$snapshots",
    "files": "SELECT count(*) FROM t$files",
    "buckets": "SELECT max(file_count) FROM t$buckets",
    "partitions": "SELECT max(file_count) FROM t$partitions",
    "log": "SELECT max(v) FROM t$audit_log",
}
SHAPES = {
    "scalars": "SELECT ({0}) AS a, ({1}) AS b",
    "join": "SELECT x.n AS a, y.n AS b FROM ({0}) AS x(n) CROSS JOIN ({1}) AS y(n)",
    "within": "SELECT x.n AS a, ({1}) AS b FROM ({0}) AS x(n) WHERE x.n IN ({1})",
    "union": "SELECT min(n) AS a, max(n) AS b FROM (({0}) UNION ALL ({1})) AS x(n)",
}


def never(request: int) -> bool:
    """Nobody comes."""
    return False


def often(phase: int) -> Callable[[int], bool]:
    """Others come before every sixth request: whoever looks for the newest snapshot finds it."""
    return lambda request: request % 6 == phase % 6


@dataclass
class Busy:
    """A lake whose table `t` gets the snapshots, one after the other, that are kept aside."""

    path: Path
    aside: Path
    others: Others
    lake: kt.Lake

    def release(self) -> None:
        """Another process commits."""
        there = len(os.listdir(self.path / FILES))
        if there < LAST:
            os.link(
                self.aside / f"snapshot-{there + 1}", self.path / FILES / f"snapshot-{there + 1}"
            )

    @contextmanager
    def at(self, before: Callable[[int], bool]) -> Iterator[kt.Lake]:
        """From snapshot `FIRST` on others commit before these requests."""
        for number in range(FIRST + 1, LAST + 1):
            (self.path / FILES / f"snapshot-{number}").unlink(missing_ok=True)
        self.others.requests.clear()
        self.others.before = before
        yield self.lake
        self.others.before = never


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Busy:
    """The table, with snapshot `FIRST`."""
    folder = tmp_path_factory.mktemp("busy")
    path, aside, seen = folder / "lake", folder / "aside", folder / "seen"
    kt.connect(path).sql(TABLES)
    table = kt.connect(path).table("t")
    for n in range(1, LAST + 1):
        table.write([{"k": k, "v": n} for k in range(1, n + 1)])
    aside.mkdir()
    for name in os.listdir(path / FILES):
        if "-" not in name:  # a hint
            (path / FILES / name).unlink()
        else:
            os.link(path / FILES / name, aside / name)
    seen.symlink_to(path)
    others = Others(lambda: None)
    made = Busy(
        path, aside, others, kt.connect(seen, store=busy_store(open_store(str(seen)), others))
    )
    others.come = made.release
    return made


def one_snapshot(result: Result, told: int = 2) -> int:
    """The snapshot that all columns of the only row tell."""
    (row,) = result.to_arrow().to_pylist()
    assert len(row) == told
    assert len({*row.values()}) == 1, row
    return next(iter(row.values()))


# -- statements that are drawn ---------------------------------------------------------------------

INSIDE = {
    "query": "SELECT max(n) FROM ({0}) AS x(n)",
    "with": "WITH w AS (SELECT n FROM ({0}) AS x(n)) "
    "SELECT max(w.n) FROM w JOIN w AS o ON w.n = o.n",
    "case": "SELECT CASE WHEN ({0}) = ({1}) THEN ({0}) ELSE -1 END",
    "union": "SELECT CASE WHEN min(n) = max(n) THEN min(n) ELSE -1 END "
    "FROM (({0}) UNION ALL ({1})) AS x(n)",
    "join": "SELECT coalesce(max(x.n), -1) FROM ({0}) AS x(n) JOIN ({1}) AS y(n) ON x.n = y.n",
    "in": "SELECT coalesce(max(n), -1) FROM ({0}) AS x(n) WHERE n IN ({1})",
    "exists": "SELECT coalesce(max(n), -1) FROM ({0}) AS x(n) "
    "WHERE EXISTS (SELECT 1 FROM ({1}) AS y(m) WHERE m = n)",
    "rows": "SELECT coalesce(max(v), -1) FROM t WHERE v = ({0}) AND k <= ({1})",
}
"""Queries of queries: the number of the snapshot, or -1 where they read more than one."""
STATEMENTS = {
    "INSERT": "INSERT OVERWRITE told SELECT ({0}) AS a, ({1}) AS b",
    "UPDATE": "UPDATE told SET a = ({0}), b = ({1})",
    "UPDATE where": "UPDATE told SET a = ({0}), b = ({0}) WHERE ({0}) = ({1})",
    "MERGE": "MERGE INTO told USING (SELECT x.n AS n, ({1}) AS m FROM ({0}) AS x(n)) AS s ON TRUE "
    "WHEN MATCHED THEN UPDATE SET a = s.n, b = s.m",
    "MERGE when": "MERGE INTO told USING ({0}) AS s(n) ON TRUE "
    "WHEN MATCHED AND s.n = ({1}) THEN UPDATE SET a = s.n, b = s.n",
}


def within(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(str.format, st.sampled_from([*INSIDE.values()]), inner, inner)


QUERIES = st.recursive(st.sampled_from([*WAYS.values()]), within, max_leaves=5)
PHASES = st.integers(0, 5)
DRAWN = settings(max_examples=40, deadline=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


@DRAWN
@given(st.sampled_from([*SHAPES.values()]), QUERIES, QUERIES, PHASES)
def test_statement_reads_one_snapshot_of_a_table(
    busy: Busy, shape: str, one: str, other: str, phase: int
) -> None:
    with busy.at(often(phase)) as lake:
        found = one_snapshot(lake.sql(shape.format(one, other)))
    assert FIRST <= found < LAST


@DRAWN
@given(st.sampled_from([*STATEMENTS.values()]), QUERIES, QUERIES, PHASES)
def test_rows_are_changed_by_one_snapshot(
    busy: Busy, statement: str, one: str, other: str, phase: int
) -> None:
    busy.lake.sql("INSERT OVERWRITE told VALUES (0, 0)")
    with busy.at(often(phase)) as lake:
        lake.sql(statement.format(one, other))
    assert FIRST <= one_snapshot(busy.lake.sql("SELECT * FROM told")) < LAST


def test_statement_with_all_ways_reads_one_snapshot(busy: Busy) -> None:
    text = ", ".join(f"({way}) AS {name}" for name, way in WAYS.items())
    with busy.at(often(1)) as lake:
        one_snapshot(lake.sql(f"SELECT {text}"), len(WAYS))


def test_statement_reads_one_snapshot_whenever_another_comes(busy: Busy) -> None:
    text = SHAPES["scalars"].format(WAYS["joined"], WAYS["files"])
    for request in itertools.count(1):
        with busy.at(request.__eq__) as lake:
            assert one_snapshot(lake.sql(text)) in (FIRST, FIRST + 1)
        if request > len(busy.others.requests):
            return


# -- what else reads -------------------------------------------------------------------------------


def told_by_scan(table: kt.Table) -> set[int]:
    rows = table.scan().to_arrow()
    return {rows.num_rows, *rows["v"].to_pylist()}


def told_by_changes(table: kt.Table, mode: str) -> set[int]:
    changes = table.changes(FIRST - 1, mode=mode)
    return {changes.end_id, max(changes.to_arrow()["v"].to_pylist())}


def told_by_list(table: kt.Table) -> set[int]:
    ids = [snapshot.id for snapshot in table.snapshots()]
    return {len(ids), *ids[-1:]}


def told_by_explanation(table: kt.Table) -> set[int]:
    explanation = table.scan(where="k > 0").explain()
    return {explanation.snapshot_id or 0, explanation.files_merged}


CALLS: dict[str, Callable[[kt.Table], set[int]]] = {
    "scan": told_by_scan,
    "count": lambda t: {t.scan().count()},
    "explain": told_by_explanation,
    "get": lambda t: {(t.get(1) or {})["v"]},
    "get_many": lambda t: {*t.get_many([1, 2, 3])["v"].to_pylist()},
    "why": lambda t: {t.why(1).to_arrow().num_rows},
    "diff": lambda t: told_by_changes(t, "diff"),
    "delta": lambda t: told_by_changes(t, "delta"),
    "snapshots": told_by_list,
    "verify": lambda t: {t.verify().snapshots} if t.verify().is_healthy else {0},
}


@pytest.mark.parametrize("name", CALLS)
def test_call_reads_one_snapshot_of_a_table(busy: Busy, name: str) -> None:
    for phase in range(6):
        with busy.at(never) as lake:
            table = lake.table("t")
            busy.others.before = often(phase)
            found = CALLS[name](table)
        assert len(found) == 1, found
        assert FIRST <= min(found) < LAST


def test_table_is_healthy_whoever_commits_meanwhile(busy: Busy) -> None:
    for phase in range(6):
        with busy.at(often(phase)) as lake:
            assert lake.table("t").verify().findings == ()
            assert lake.table("t").doctor().signs


@pytest.mark.parametrize("pair", [*itertools.pairwise(WAYS)])
def test_rows_are_inserted_of_one_snapshot(busy: Busy, pair: tuple[str, str]) -> None:
    query = SHAPES["scalars"].format(*map(WAYS.get, pair))
    with busy.at(often(len(pair[0]))) as lake:
        lake.sql(f"INSERT OVERWRITE told {query}; CREATE TABLE made AS {query}")
    try:
        one_snapshot(busy.lake.sql("SELECT * FROM told"))
        one_snapshot(busy.lake.sql("SELECT * FROM made"))
    finally:
        busy.lake.sql("DROP TABLE made")


def test_explanation_is_of_one_snapshot(busy: Busy) -> None:
    query = SHAPES["join"].format(WAYS["joined"], WAYS["nested"])
    for phase in range(6):
        with busy.at(often(phase)) as lake:
            plan = "\n".join(lake.sql(f"EXPLAIN {query}").to_arrow()["plan"].to_pylist())
        found = re.findall(r"snapshot (\d+)", plan)
        assert len(found) == 4
        assert len({*found}) == 1


# -- how often it is looked ------------------------------------------------------------------------

ONE_LOOK = {
    "SELECT": "SELECT max(v) FROM t WHERE k > 1",
    "self join": WAYS["joined"],
    "system tables": "SELECT count(*) FROM t$files JOIN t$snapshots ON TRUE JOIN t ON TRUE",
    "DELETE": "DELETE FROM t WHERE k IN (SELECT max(k) FROM t)",
    "UPDATE": "UPDATE t SET v = (SELECT max(v) FROM t)",
    "MERGE": "MERGE INTO t USING t AS s ON t.k = s.k WHEN MATCHED THEN DELETE",
    "INSERT": "INSERT INTO t SELECT k + 1000, v FROM t",
    "DESCRIBE": "DESCRIBE EXTENDED t",
    "EXPLAIN": "EXPLAIN DELETE FROM t WHERE v = (SELECT max(v) FROM t)",
}


@pytest.mark.parametrize("text", ONE_LOOK.values(), ids=ONE_LOOK)
def test_statement_looks_once(warehouse: str, text: str) -> None:
    others = Others(lambda: None)
    lake = kt.connect(warehouse, store=busy_store(open_store(warehouse), others))
    lake.sql(TABLES)
    lake.sql("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    others.requests.clear()
    lake.sql(text)
    # Whoever looks for the newest schema asks for the one after the newest that is known.
    looks = [path for _, path in others.requests if path.endswith("/t/schema/schema-1")]
    assert len(looks) == 1, others.requests
