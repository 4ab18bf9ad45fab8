"""A table made with its first rows appears whole or not at all, whatever fails on the way."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from keytide.store import open_store
from keytide.store.faults import Crash, Fault, FaultyStore
from table_rows import dicts

ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
TEXT = (
    "CREATE TABLE t (PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket' = '2') "
    "AS SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS x(k, v)"
)


def files(warehouse: str) -> list[str]:
    return [path.name for path in Path(warehouse).rglob("*") if path.is_file()]


def writes(tmp_path: Path) -> int:
    store = FaultyStore(open_store(str(tmp_path / "counted")))
    kt.connect("unused", store=store).sql(TEXT)
    kinds = [operation for operation, _ in store.log]
    return sum(kind in ("create", "put", "output") for kind in kinds)


ACTIONS = ["fail", "torn", "disk-full", "lost-response", "interrupt", "crash"]


@pytest.mark.parametrize("action", ACTIONS)
def test_fault_at_any_write_leaves_a_whole_table_or_none(tmp_path: Path, action: str) -> None:
    empty = []
    for nth in range(1, writes(tmp_path) + 2):
        path = tmp_path / f"lake-{nth}"
        path.mkdir()
        fault = Fault("write", nth=nth, action=action)  # type: ignore[arg-type]  # from a list
        store = FaultyStore(open_store(str(path)), [fault])
        try:
            kt.connect("unused", store=store).sql(TEXT)
            failed = False
        except (kt.DataError, KeyboardInterrupt, Crash):
            failed = True
        lake = kt.connect(str(path))
        if "default.t" in lake.tables():
            found = dicts(lake.table("t"))
            if action == "crash" and found == []:
                empty.append(nth)
            else:
                assert found == ROWS
        else:
            assert failed
            if action in (
                "fail",
                "disk-full",
                "interrupt",
            ):  # else the store itself leaves a file behind
                assert [name for name in files(str(path)) if name.endswith(".parquet")] == []
        lake.sql("CREATE TABLE IF NOT EXISTS t (k INT PRIMARY KEY NOT ENFORCED)")
        assert lake.table("t").scan().count() in (0, 2)
    assert len(empty) <= 4  # from the definition over three manifests to the snapshot


def test_rows_that_do_not_fit_leave_nothing(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    with pytest.raises(kt.InvalidError, match="NULL"):
        lake.sql(TEXT.replace("(2, 'b')", "(NULL, 'b')"))
    assert (lake.tables(), files(warehouse)) == ([], [])


def test_no_rows_make_an_empty_table(lake: kt.Lake) -> None:
    assert lake.sql(TEXT + " WHERE k > 5").row_count == 0
    assert lake.table("t").scan().to_pylist() == []


def test_of_two_makers_one_wins_and_the_other_leaves_nothing(warehouse: str) -> None:
    lake = kt.connect(warehouse)

    class Rival(FaultyStore):
        """Makes the table in the moment before the other one's definition."""

        def create(self, path: str, data: bytes) -> bool:
            if path.endswith("schema-0") and "default.t" not in lake.tables():
                lake.create_table_as("t", [{"k": 9, "v": "rival"}], SCHEMA, ["k"])
            return super().create(path, data)

    late = kt.connect("unused", store=Rival(open_store(warehouse)))
    with pytest.raises(kt.AlreadyExistsError, match="meanwhile"):
        late.create_table_as("t", ROWS, SCHEMA, ["k"])
    assert lake.table("t").scan().to_pylist() == [{"k": 9, "v": "rival"}]
    assert len([name for name in files(warehouse) if name.endswith(".parquet")]) == 1


def test_name_that_is_taken_is_refused_before_anything_is_written(warehouse: str) -> None:
    lake = kt.connect(warehouse)
    assert lake.create_table_as("t", ROWS, SCHEMA, ["k"]).rows == 2
    before = files(warehouse)
    with pytest.raises(kt.AlreadyExistsError):
        lake.create_table_as("t", ROWS, SCHEMA, ["k"])
    assert files(warehouse) == before
