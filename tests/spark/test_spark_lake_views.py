"""The tables of a lake as views of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from keytide.spark.session_sql import _views

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


@pytest.mark.spark
def test_views_show_tables_of_all_kinds_as_they_were_and_can_be_renewed(
    tmp_path: Path, spark: Any
) -> None:
    lake = kt.connect(tmp_path / "lake")
    orders = lake.create_table("shop.orders", SCHEMA, ["id"], options={"bucket": "1"})
    orders.write([{"id": 1, "v": "a"}])
    (tmp_path / "theirs").mkdir()
    versions = pa.table({"id": [1, 1], "w": [1, 2], "v": ["old", "new"]})
    pq.write_table(versions, tmp_path / "theirs/1.parquet")
    lake.create_external_table(
        "shop.theirs", format="parquet", location=str(tmp_path / "theirs"), primary_key=["id"],
        watermark_key=["w"],
    )  # fmt: skip

    made = kt.spark.register_lake(spark, lake, name="{database}_{table}")
    assert made == {"shop_orders": "shop.orders", "shop_theirs": "shop.theirs"}
    query = "SELECT o.v, t.v FROM shop_orders o JOIN shop_theirs t ON o.id = t.id"
    assert [tuple(row) for row in spark.sql(query).collect()] == [("a", "new")]
    orders.write([{"id": 2, "v": "b"}])
    assert spark.table("shop_orders").count() == 1
    kt.spark.register_lake(spark, lake, ["shop.orders"], name="shop_{table}")
    assert spark.table("shop_orders").count() == 2


def test_names_of_views() -> None:
    tables = ["a.t", "b.t", "b.u"]
    assert _views(tables, "{database}_{table}") == {"a_t": "a.t", "b_t": "b.t", "b_u": "b.u"}
    assert _views(["a.t"], "{table}") == {"t": "a.t"}
    with pytest.raises(
        kt.InvalidError, match=r"tables a\.t and b\.t would both become the view 't'"
    ):
        _views(tables, "{table}")
    with pytest.raises(kt.InvalidError, match=r"a\.T and b\.t"):
        _views(["a.T", "b.t"], "x_{table}")
    for name in ("orders", "{schema}_{table}", "{table"):
        with pytest.raises(kt.InvalidError, match="name is"):
            _views(tables, name)


@pytest.mark.spark
def test_empty_lake_gives_no_view(tmp_path: Path, spark: Any) -> None:
    assert kt.spark.register_lake(spark, kt.connect(tmp_path / "nothing")) == {}
