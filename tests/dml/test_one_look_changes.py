"""A statement that changes rows reads all that it reads at one snapshot, whoever commits meanwhile.

A row of the table says by `v` which commit brought it; each commit brings all rows anew, and one
more. So a statement that read its target at one snapshot, and the rest at another, would show. A
dict is the model: what comes of a statement is what comes of it before the other commit, or after.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

import keytide as kt
from busy import Others, busy_store
from keytide.store import open_store
from table_rows import by_key

Rows: TypeAlias = "dict[int, tuple[int, int]]"
"""By k: v and w."""

FIRST, NEXT = 3, 4
COLUMNS = "k INT NOT NULL, v INT, w INT"
KINDS = {
    "keyed": f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (k) NOT ENFORCED)",
    "keyed, vectors": f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (k) NOT ENFORCED) "
    "WITH ('deletion-vectors.enabled' = 'true')",
    "keyed, dynamic": f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (k) NOT ENFORCED) "
    "WITH ('bucket' = '-1')",
    "vectors": f"CREATE TABLE t ({COLUMNS}) WITH ('deletion-vectors.enabled' = 'true')",
    "rewritten": f"CREATE TABLE t ({COLUMNS})",
}


def committed(n: int) -> Rows:
    """All rows that commit n brings."""
    return dict.fromkeys(range(1, n + 1), (n, 0))


def newest(rows: Rows) -> int:
    return max(v for v, _ in rows.values())


def stamped(rows: Rows) -> Rows:
    return {k: (v, newest(rows)) for k, (v, _) in rows.items()}


def largest_left(rows: Rows) -> Rows:
    return {max(rows): rows[max(rows)]}


def first_left(rows: Rows) -> Rows:
    return {k: row for k, row in rows.items() if k <= 1}


@dataclass(frozen=True)
class Change:
    """A statement, and what comes of rows by it."""

    make: Callable[[kt.Lake], object]
    outcome: Callable[[Rows], Rows]


def sql(text: str, outcome: Callable[[Rows], Rows]) -> Change:
    return Change(lambda lake: lake.sql(text), outcome)


def merged_by_builder(lake: kt.Lake) -> None:
    table = lake.table("t")
    merge = table.merge(table, "target.k = source.k")
    merge = merge.when_matched_update({"w": "source.v"}, condition="source.v = target.v")
    merge.when_matched_delete().execute()


CHANGES = {
    "update": sql("UPDATE t SET w = (SELECT max(v) FROM t)", stamped),
    "update among": sql("UPDATE t SET w = v WHERE v IN (SELECT max(v) FROM t)", stamped),
    "update correlated": sql(
        "UPDATE t SET w = (SELECT max(o.v) FROM t AS o WHERE o.k = t.k AND o.v = t.v)", stamped
    ),
    "delete": sql("DELETE FROM t WHERE k < (SELECT max(k) FROM t)", largest_left),
    "delete among": sql("DELETE FROM t WHERE k IN (SELECT k FROM t WHERE k > 1)", first_left),
    "delete files": sql(
        "DELETE FROM t WHERE k > 1 AND (SELECT max(snapshot_id) FROM t$snapshots) = "
        "(SELECT max(snapshot_id) FROM t$snapshots)",
        first_left,
    ),
    "merge": sql(
        "MERGE INTO t USING (SELECT k, v, (SELECT max(v) FROM t) AS m FROM t) AS s "
        "ON t.k = s.k AND t.v = s.v WHEN MATCHED THEN UPDATE SET w = s.m "
        "WHEN NOT MATCHED THEN INSERT (k, v, w) VALUES (s.k + 100, s.v, -1)",
        stamped,
    ),
    "merge of itself": sql(
        "MERGE INTO t USING t AS s ON t.k = s.k WHEN MATCHED AND s.v = t.v THEN UPDATE SET w = s.v "
        "WHEN MATCHED THEN DELETE",
        stamped,
    ),
    "call of update": Change(
        lambda lake: lake.table("t").update({"w": "(SELECT max(v) FROM t)"}), stamped
    ),
    "call of delete": Change(
        lambda lake: lake.table("t").delete("k < (SELECT max(k) FROM t)"), largest_left
    ),
    "call of merge": Change(merged_by_builder, stamped),
}


def bring(lake: kt.Lake, n: int) -> None:
    """One commit that brings all rows anew."""
    rows = [{"k": k, "v": v, "w": w} for k, (v, w) in committed(n).items()]
    lake.table("t").overwrite(rows)


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with the table as commit `FIRST` left it."""
    path = tmp_path_factory.mktemp("made")
    lake = kt.connect(path)
    lake.sql(KINDS[request.param])
    for n in range(1, FIRST + 1):
        bring(lake, n)
    return path


def run(made: Path, folder: Path, make: Callable[[kt.Lake], object], *requests: int) -> Others:
    """Have another process commit before these requests; gives all that there were."""
    path, seen = folder / "lake", folder / "seen"
    shutil.copytree(made, path)
    seen.symlink_to(path)
    others = Others(lambda: bring(kt.connect(path), NEXT), requests.__contains__)
    make(kt.connect(seen, store=busy_store(open_store(str(seen)), others)))
    others.before = lambda _: False
    return others


FOR_EVER = ("/manifest/", "/bucket-", "/schema/schema-")
"""In the paths of files that never change: who comes before one is read might come after it."""


def requests_to_try(others: Others, start: int, step: int) -> list[int]:
    """Of the requests that tell whether others came, each so many-th one."""
    telling = [
        number
        for number, (_, path) in enumerate(others.requests, start=1)
        if not any(part in path for part in FOR_EVER)
    ]
    return telling[start::step]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_change_is_that_of_one_snapshot(made: Path, tmp_path: Path, name: str) -> None:
    change = CHANGES[name]
    allowed = [committed(NEXT), change.outcome(committed(NEXT))]
    alone = run(made, new_folder(tmp_path, 0), change.make)
    assert by_key(kt.connect(tmp_path / "0" / "lake").table("t"), "v", "w") == change.outcome(
        committed(FIRST)
    )
    # Others for each statement: together they are all of them.
    for request in requests_to_try(alone, [*CHANGES].index(name) % 5, 5):
        others = run(made, new_folder(tmp_path, request), change.make, request)
        assert request <= len(others.requests)
        assert (
            by_key(kt.connect(tmp_path / f"{request}" / "lake").table("t"), "v", "w") in allowed
        ), request


@pytest.mark.slow
def test_rows_that_are_inserted_are_of_one_snapshot(made: Path, tmp_path: Path) -> None:
    text = (
        "INSERT INTO t SELECT x.k + 100 * y.v, x.v, (SELECT max(v) FROM t) FROM t AS x "
        "JOIN t AS y ON x.k = y.k"
    )
    alone = run(made, new_folder(tmp_path, 0), lambda lake: lake.sql(text))
    for request in requests_to_try(alone, 0, 3):
        run(made, new_folder(tmp_path, request), lambda lake: lake.sql(text), request)
        found = by_key(kt.connect(tmp_path / f"{request}" / "lake").table("t"), "v", "w")
        new = {k: row for k, row in found.items() if k > 100}
        of = {(k // 100, *row) for k, row in new.items()}
        assert of <= {(FIRST,) * 3} or of <= {(NEXT,) * 3}, request


def new_folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir()
    return folder
