"""Tables of others merged by several tasks of Spark: the rows that one reader makes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
import test_federated as federated

import delta_tables
import iceberg_tables
import keytide as kt
from keytide.spark import external_merge
from keytide.spark import external_merge as external_files

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.int32()), ("w", pa.int64()), ("d", pa.bool_()), ("v", pa.string())])
NATIVE = "FileScan parquet"


@pytest.fixture(autouse=True, params=["one task decides", "several tasks decide"])
def every_table_is_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_merge, "_SMALL_BYTES", -1)
    if request.param == "several tasks decide":
        monkeypatch.setattr(external_files, "_is_small", lambda merging: False)


def commits(seed: int) -> list[pa.Table]:
    """Appends in which keys come again, with watermarks that tie, tombstones, and NULL."""
    drawn = random.Random(seed)
    return [
        pa.Table.from_pylist(
            [
                {
                    "k": drawn.choice([None, *range(12)]),
                    "w": drawn.randrange(4),
                    "d": drawn.choice([None, False, False, True]),
                    "v": drawn.choice("abc"),
                }
                for _ in range(20)
            ],
            schema=SCHEMA,
        )
        for _ in range(3)
    ]


def delta(folder: Path) -> dict[str, Any]:
    for rows in commits(1):
        deltalake.write_deltalake(folder / "t", rows, mode="append")
    path = delta_tables.actions(folder / "t", 1)[-1]["add"]["path"]
    delta_tables.delete_by_vector(folder / "t", path, [0, 19], inline=False)
    return {"format": "delta", "location": str(folder / "t")}


def iceberg(folder: Path) -> dict[str, Any]:
    table = iceberg_tables.create(folder, SCHEMA)
    for rows in commits(2):
        table.append(rows)
    first = iceberg_tables.live_files(table)[0].file_path
    iceberg_tables.delete_positions(table, {first: [1, 18]})
    return {"format": "iceberg", "location": table.location()}


def parquet(folder: Path) -> dict[str, Any]:
    (folder / "t").mkdir(parents=True)
    for number, rows in enumerate(commits(3)):
        pq.write_table(rows, folder / f"t/{number}.parquet")
    return {"format": "parquet", "location": str(folder / "t")}


def csv(folder: Path) -> dict[str, Any]:
    (folder / "t").mkdir(parents=True)
    for number, rows in enumerate(commits(4)):
        arrow_csv.write_csv(rows, folder / f"t/{number}.csv")
    return {"format": "csv", "location": str(folder / "t"), "schema": SCHEMA}


def define(lake: kt.Lake, told: dict[str, Any]) -> kt.ExternalTable:
    keys: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"], "tombstone_key": "d"}
    return lake.create_external_table("e", **told, **keys)


def listed(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("source", "is_native"), [(delta, True), (iceberg, True), (parquet, True), (csv, False)]
)
def test_several_tasks_make_the_rows_that_one_reader_makes(
    source: Callable[[Path], dict[str, Any]],
    is_native: bool,
    tmp_path: Path,
    spark: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake = kt.connect(tmp_path / "lake", spark)
    table = define(lake, source(tmp_path / "theirs"))
    some = {"columns": ["v", "k"], "where": "k < 9 AND v <> 'a'"}
    for asked in ({}, some):
        frame = table.scan(**asked).to_spark(spark)
        expected = listed(table.scan(**asked).to_arrow())
        assert expected
        assert listed(frame.toArrow()) == expected
    frame.explain()
    assert (NATIVE in capsys.readouterr().out) == is_native


@pytest.mark.takes_turns
def test_keys_of_floats_are_told_apart_as_one_reader_does(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "t").mkdir()
    for number, keys in enumerate([[-0.0, math.nan, 1.0], [0.0]]):
        rows = {"k": keys, "w": [number] * len(keys), "v": [f"{key}" for key in keys]}
        pq.write_table(pa.table(rows), tmp_path / f"t/{number}.parquet")
    lake = kt.connect(tmp_path / "lake", spark)
    lake.create_external_table(
        "e",
        format="parquet",
        location=str(tmp_path / "t"),
        primary_key=["k"],
        watermark_key=["w"],
    )
    found = lake.sql("SELECT v FROM e WHERE k = 0.0 OR k = CAST('NaN' AS DOUBLE) ORDER BY v")
    assert found.to_pylist() == [{"v": "0.0"}, {"v": "nan"}]


def test_file_that_is_gone_is_a_data_error(tmp_path: Path, spark: Any) -> None:
    lake = kt.connect(tmp_path / "lake", spark)
    define(lake, delta(tmp_path / "theirs"))
    query = lake.sql("SELECT * FROM e")
    for file in (tmp_path / "theirs/t").glob("*.parquet"):
        file.unlink()
    with pytest.raises(kt.DataError, match="parquet"):
        query.to_arrow()


def test_statement_on_spark_sees_one_version_and_a_dataframe_stays_with_it(
    tmp_path: Path, spark: Any
) -> None:
    lake = kt.connect(tmp_path / "lake", spark)
    table = define(lake, delta(tmp_path / "theirs"))
    before = listed(table.scan().to_arrow())
    frame = lake.sql("SELECT x.* FROM e x JOIN e y ON x.k <=> y.k").to_spark()
    deltalake.write_deltalake(tmp_path / "theirs/t", commits(9)[0], mode="append")
    assert listed(frame.toArrow()) == before != listed(table.scan().to_arrow())


# -- federated tables ------------------------------------------------------------------------------


@pytest.mark.takes_turns
@pytest.mark.parametrize("engine", [federated.delta, federated.iceberg, federated.sqlite])
def test_history_has_the_rows_of_a_table_of_the_lake_on_spark_too(
    engine: Callable[..., federated.Federated], tmp_path: Path, spark: Any
) -> None:
    rising = engine is federated.sqlite
    keys = kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="explicit" if rising else None)
    far = engine(tmp_path, keys)
    far.lake.create_table(
        "near",
        federated.SCHEMA,
        primary_key=["k"],
        options={"watermark.key": "w", "tombstone.key": "d"},
    )
    drawn = random.Random(7)
    for number in range(6):
        key, text = drawn.randrange(4), drawn.choice("abc")
        sets = f"w = {10 + number}, v = '{text}'" if rising else f"v = '{text}'"
        change = drawn.choice(
            [
                f"INSERT INTO {{}} VALUES ({key}, {number}, NULL, '{text}')",
                f"UPDATE {{}} SET {sets} WHERE k >= {key}",
                f"UPDATE {{}} SET d = TRUE, {sets} WHERE k = {key}",
            ]
        )
        for name in ("far.t", "near"):
            far.sql(change.format(name))
    near = far.rows("SELECT * FROM near")
    assert near
    assert far.rows() == near
    lake = kt.connect(tmp_path / "lake", spark)
    attach(lake, tmp_path, engine, keys)
    assert federated.values(lake.sql("SELECT * FROM far.t").to_arrow()) == near


def attach(lake: kt.Lake, folder: Path, engine: Any, keys: kt.UpsertKeys) -> None:
    told: dict[str, Any] = {"format": engine.__name__, "tables": {"t": keys}}
    if engine is federated.iceberg:
        options = {"catalog.uri": f"sqlite:///{folder}/far/c.db"}
        lake.attach("far", "n", options=options, **told)
    else:
        lake.attach("far", folder / ("far" if engine is federated.delta else "far.db"), **told)


@pytest.mark.takes_turns
def test_statements_of_a_lake_on_spark_append_versions(tmp_path: Path, spark: Any) -> None:
    far = federated.delta(tmp_path)
    lake = kt.connect(tmp_path / "lake", spark)
    attach(lake, tmp_path, federated.delta, federated.KEYS)
    far.sql("INSERT INTO far.t VALUES (1, 5, NULL, 'a'), (2, 5, NULL, 'b'), (3, 5, NULL, 'c')")
    changes = [
        "INSERT INTO far.t SELECT 4, 1, CAST(NULL AS BOOLEAN), v FROM far.t WHERE k = 3",
        "UPDATE far.t SET v = concat(v, 'z') WHERE k = 1",
        "DELETE FROM far.t WHERE v = 'b'",
        "MERGE INTO far.t t USING (SELECT 3 AS k UNION ALL SELECT 9) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = 'm' "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.k, 1, NULL, 'n')",
    ]
    assert [lake.sql(text).row_count for text in changes] == [1, 1, 1, 2]
    assert far.rows() == [
        (1, 5, None, "az"), (3, 5, None, "m"), (4, 1, None, "c"), (9, 1, None, "n"),
    ]  # fmt: skip
