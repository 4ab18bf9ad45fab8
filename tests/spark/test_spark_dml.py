"""DELETE, UPDATE and MERGE on Spark: which jobs they run, and that these change what they say."""

from __future__ import annotations

from typing import Any

import pytest

import keytide as kt
from keytide.spark import dml

pytestmark = pytest.mark.spark

KEYS = {"keyed": ["id"], "append": []}


@pytest.fixture(params=KEYS)
def lake(request: pytest.FixtureRequest, warehouse: str, spark: Any) -> kt.Lake:
    """Rows (0, "a", 0) to (9, "a", 9); where there is a key, the even ones were written twice."""
    lake = kt.connect(warehouse, spark=spark)
    kinds = {"id": "INT", "v": "STRING", "n": "INT"}
    fields = [kt.Field(-1, name, kt.parse_sql_type(text)) for name, text in kinds.items()]
    key = KEYS[request.param]
    table = lake.create_table("t", fields, key, options={"bucket": "2"} if key else {})
    table.write([{"id": i, "v": "a", "n": i} for i in range(10) if key or i % 2])
    table.write([{"id": i, "v": "a", "n": i} for i in range(0, 10, 2)])
    return lake


def ids(lake: kt.Lake) -> list[int]:
    return sorted(row["id"] for row in lake.table("t").scan().to_pylist())


@pytest.mark.parametrize(
    ("where", "gone", "computes"),
    [
        ("id > 6", {7, 8, 9}, False),
        ("id IN (1, 2) OR n = 3", {1, 2, 3}, False),
        ("TRUE", set(range(10)), True),
        ("n = 99", set(), False),
        ("id % 2 = 0 AND n > 3", {4, 6, 8}, True),
        ("(id = 1 AND n + 0 = 1) OR (id = 2 AND n + 0 = 3)", {1}, True),
        ("id IN (SELECT n - 5 FROM t)", {0, 1, 2, 3, 4}, True),
    ],
)
def test_delete_computes_only_what_its_terms_leave_open(
    lake: kt.Lake,
    where: str,
    gone: set[int],
    computes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = []
    monkeypatch.setattr(dml, "_frame", lambda *a, made=dml._frame: frames.append(a) or made(*a))
    assert lake.sql(f"DELETE FROM t WHERE {where}").row_count == len(gone)
    assert ids(lake) == sorted(set(range(10)) - gone)
    assert bool(frames) == computes


@pytest.mark.parametrize(
    ("text", "changed", "computes"),
    [
        ("SET v = 'b', n = -7 WHERE id > 6", dict.fromkeys((7, 8, 9), ("b", -7)), False),
        ("SET v = NULL WHERE n IN (1, 2)", {i: (None, i) for i in (1, 2)}, False),
        ("SET n = 5 WHERE id > 99", {}, False),
        ("SET n = 5 WHERE id % 5 = 4", dict.fromkeys((4, 9), ("a", 5)), True),
        ("SET n = n + 1 WHERE id > 7", {i: ("a", i + 1) for i in (8, 9)}, True),
    ],
)
def test_update_computes_only_what_is_not_the_same_for_all_rows(
    lake: kt.Lake,
    text: str,
    changed: dict[int, Any],
    computes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = []
    monkeypatch.setattr(dml, "_frame", lambda *a, made=dml._frame: frames.append(a) or made(*a))
    assert lake.sql(f"UPDATE t {text}").row_count == len(changed)
    found = {row["id"]: (row["v"], row["n"]) for row in lake.table("t").scan().to_pylist()}
    assert found == {i: ("a", i) for i in range(10)} | changed
    assert bool(frames) == computes


def test_constant_that_does_not_fit_changes_nothing(lake: kt.Lake) -> None:
    for value in ("3000000000", "'x'"):
        with pytest.raises(kt.InvalidError, match="'n'"):
            lake.sql(f"UPDATE t SET n = {value} WHERE id > 6")
    assert ids(lake) == list(range(10))
