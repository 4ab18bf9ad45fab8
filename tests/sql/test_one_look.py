"""Whatever a statement reads of a table, it reads of one snapshot, whoever commits meanwhile."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from busy import Others, busy_store
from keytide.store import open_store
from one_look import (
    FIRST,
    LAST,
    QUERIES,
    SHAPES,
    STATEMENTS,
    TABLES,
    WAYS,
    Busy,
    made_busy,
    never,
    often,
    one_snapshot,
)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Busy:
    """The table, with snapshot `FIRST`."""
    return made_busy(tmp_path_factory.mktemp("busy"))


# -- statements that are drawn ---------------------------------------------------------------------

PHASES = st.integers(0, 5)
DRAWN = settings(max_examples=max(15, settings().max_examples), deadline=None,
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
