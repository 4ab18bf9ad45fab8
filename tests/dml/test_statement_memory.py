"""Statements that hold little at a time: the same rows, and errors however far apart rows are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.dml import keyed_table as coming_keys
from keytide.dml.fragments import Spool

ROWS = 60_000
LITTLE = {"read.memory": "256 kb", "write-buffer-size": "128 kb"}
STATEMENTS = [
    "DELETE FROM t WHERE k % 3 = 0",
    "UPDATE t SET v = v + 1 WHERE k % 3 = 0",
    "UPDATE t SET k = k + 1000000 WHERE k % 3 = 0",
    "MERGE INTO t USING t AS s ON t.k = s.k + 1 WHEN MATCHED AND s.v % 2 = 0 THEN DELETE "
    "WHEN MATCHED THEN UPDATE SET v = s.v",
    "MERGE INTO t USING (SELECT k + 30000 AS k, v FROM t) AS s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT * "
    "WHEN NOT MATCHED BY SOURCE AND t.k % 2 = 0 THEN DELETE",
]


def filled(warehouse: Path, key: list[str], options: dict[str, str]) -> kt.Lake:
    lake = kt.connect(warehouse)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = lake.create_table("t", schema, key, options=options)
    table.write(pa.table({"k": range(ROWS), "v": [k * 7919 % 1000 for k in range(ROWS)]}, schema))
    return lake


@pytest.mark.one_in(14)
@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "append"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statement_in_little_memory_does_the_same(
    tmp_path: Path, statement: str, key: list[str]
) -> None:
    found = []
    for name, options in (("little", LITTLE), ("much", {})):
        lake = filled(tmp_path / name, key, options)
        count = lake.sql(statement).row_count
        found.append((count, lake.sql("SELECT * FROM t ORDER BY k, v").to_arrow()))
    assert found[0] == found[1]


@pytest.mark.parametrize(("memory", "is_narrowed"), [("256 kb", False), ("1 gb", True)])
def test_merge_holds_no_more_values_of_its_source_than_memory_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, is_narrowed: bool
) -> None:
    held: list[int] = []
    apply_values = coming_keys.KeyedMetadata.apply_values

    def counted(of: Any, session: Any, table: Any, values: Any) -> Any:
        held.extend(map(len, values.values()))
        return apply_values(of, session, table, values)

    monkeypatch.setattr(coming_keys.KeyedMetadata, "apply_values", counted)
    lake = filled(tmp_path, ["k"], {"read.memory": memory})
    lake.sql("MERGE INTO t USING t AS s ON t.k = s.k AND t.v = s.v WHEN MATCHED THEN DELETE")
    assert held == ([ROWS, 1000] if is_narrowed else [])
    assert lake.table("t").scan().count() == 0


@pytest.mark.one_in(14)
@pytest.mark.parametrize("apart", [1, 30_000, ROWS - 1])
def test_row_that_is_matched_twice_is_found_however_far_apart(tmp_path: Path, apart: int) -> None:
    lake = filled(tmp_path, ["k"], LITTLE)
    text = (f"MERGE INTO t USING (SELECT k FROM t UNION ALL SELECT {apart}) s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET v = -1")  # fmt: skip
    with pytest.raises(kt.InvalidError, match="more than one source row"):
        lake.sql(text)
    assert lake.sql("SELECT count(*) AS n FROM t WHERE v = -1").to_pylist() == [{"n": 0}]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("part_rows", [1, 1000, ROWS * 3])
def test_key_that_comes_twice_is_found_in_any_number_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_rows: int
) -> None:
    monkeypatch.setattr(coming_keys, "_PART_ROWS", max(part_rows, ROWS // 50))
    lake = filled(tmp_path, ["k"], LITTLE)
    text = "MERGE INTO t USING (SELECT k + {0} AS k FROM t {1}) s ON t.k = s.k WHEN NOT MATCHED "
    text += "THEN INSERT (k) VALUES (s.k)"
    with pytest.raises(kt.InvalidError, match=r"two rows would have the primary key .*70000"):
        lake.sql(text.format(ROWS, "UNION ALL SELECT 70000"))
    assert lake.sql(text.format(ROWS, "")).row_count == ROWS


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM t WHERE k IN (SELECT length(string_agg(repeat('x', 2000), '')) FROM t)",
        "MERGE INTO t USING (SELECT length(string_agg(repeat('x', 2000), '')) AS k FROM t) s "
        "ON t.k = s.k WHEN MATCHED THEN DELETE",
    ],
)
def test_statement_that_needs_more_memory_says_what_to_do(tmp_path: Path, statement: str) -> None:
    lake = filled(tmp_path, ["k"], LITTLE)
    with pytest.raises(kt.InvalidError, match=r"'read.memory' of the table allows: increase it"):
        lake.sql(statement)
    assert lake.table("t").scan().count() == ROWS


def test_spool_gives_its_rows_as_often_as_it_is_asked() -> None:
    for memory in (1, 1 << 20):
        spool = Spool(memory)
        batches = [pa.record_batch({"k": list(range(n, n + 3))}) for n in (0, 3, 6)]
        for batch in batches:
            spool.add(batch)
        for _ in range(2):
            found: list[Any] = [k for some in spool.tables() for k in some.column("k").to_pylist()]
            assert found == list(range(9))
        spool.close()


@pytest.mark.soak
def test_peak_of_a_merge_is_level(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks/statement_memory.py"
    command = [sys.executable, str(script), "--kinds", "keyed", "--rows", "1000000", "4000000",
               "--statements", "MERGE, update"]  # fmt: skip
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    small, large = (int(peak.replace(",", "")) for peak in re.findall(r"([\d,]+) MB", told))
    assert large < small * 1.6
