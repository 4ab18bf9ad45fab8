"""A table of which each statement tells the snapshots that it read, and statements to draw.

Snapshot n of the table `t` has the keys 1 to n, all with v = n; each commit brings one file. So
whatever is told of it tells n. Another process has its commits land between the requests of the
statement, which knows the table by another path: nothing that this process remembers is shared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import strategies as st

import keytide as kt
from busy import Others, busy_store
from keytide.sql.result import Result
from keytide.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def made_busy(folder: Path, spark: SparkSession | None = None) -> Busy:
    """The table in a folder, as a lake knows it, on Spark perhaps."""
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
    store = busy_store(open_store(str(seen)), others)
    made = Busy(path, aside, others, kt.connect(seen, spark, store=store))
    others.come = made.release
    return made


def one_snapshot(result: Result, told: int = 2) -> int:
    """The snapshot that all columns of the only row tell."""
    (row,) = result.to_arrow().to_pylist()
    assert len(row) == told
    assert len({*row.values()}) == 1, row
    return next(iter(row.values()))


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
