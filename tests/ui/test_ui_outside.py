"""Pages of views and of tables whose rows another engine writes."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient
from ui_requests import Browse

import keytide as kt
from keytide.dml.memory import MemoryConnector


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.create_table("shop.orders", pa.schema([("id", pa.int64()), ("n", pa.int32())]), ["id"])
    lake.sql(
        "USE shop; CREATE VIEW some COMMENT 'a <b> of it' AS SELECT id, n * 2 AS twice FROM orders"
    )
    return lake


@pytest.fixture
def page(browse: Browse, lake: kt.Lake) -> TestClient:
    return browse(lake)


@pytest.fixture
def payments(lake: kt.Lake, warehouse: str) -> Path:
    """The folder of an external table with three versions of two keys."""
    folder = Path(f"{warehouse}-payments")
    folder.mkdir()
    rows = pa.table({"id": [1, 1, 2], "at": [1, 2, 1], "paid": [5, 6, 7]})
    pq.write_table(rows, folder / "a.parquet")
    lake.create_external_table(
        "shop.payments", format="parquet", location=str(folder), primary_key=["id"],
        watermark_key=["at"],
    )  # fmt: skip
    return folder


def test_view_has_its_columns_and_its_query(page: TestClient) -> None:
    shown = page.get("/table/shop.some")
    assert shown.status_code == 200
    assert "a &lt;b&gt; of it" in shown.text
    assert "CREATE VIEW `shop`.`some`" in shown.text
    assert "SELECT id, n * 2 AS twice FROM orders" in shown.text
    assert "<code>BIGINT</code>" in shown.text
    assert 'href="/sql?text=SELECT+%2A+FROM+%60shop%60.%60some%60+LIMIT+100"' in shown.text
    assert page.get("/table/shop.some/timeline").status_code == 422


def test_view_of_a_table_that_is_gone_says_so(page: TestClient, lake: kt.Lake) -> None:
    lake.drop_table("shop.orders")
    shown = page.get("/table/shop.some")
    assert shown.status_code == 200
    assert "This cannot be read now" in shown.text
    assert "table shop.orders does not exist" in shown.text


def test_external_table_has_its_definition_and_its_source(page: TestClient, payments: Path) -> None:
    shown = page.get("/table/shop.payments").text
    assert "external table" in shown
    assert str(payments) in shown
    assert "USING parquet" in shown
    assert "watermark.key" in shown
    source = page.get("/table/shop.payments/source").text
    assert "Stored versions of keys</dt><dd>3</dd>" in source
    assert "the format has no versions" in source
    part = page.get("/table/shop.payments/source?part=1").text
    assert "<html" not in part


def test_key_of_an_external_table_has_its_story(page: TestClient, payments: Path) -> None:
    shown = page.get("/table/shop.payments/why?key=1").text
    assert "2 stored versions, in the order in which they are merged" in shown
    assert "At version" in shown
    assert page.get("/table/shop.payments/why?key=1&snapshot=4").status_code in (404, 422)


def test_pages_that_external_tables_do_not_have_are_refused(
    page: TestClient, payments: Path
) -> None:
    for name in ("timeline", "layout", "streams", "health"):
        answer = page.get(f"/table/shop.payments/{name}")
        assert (answer.status_code, "another engine writes its rows" in answer.text) == (422, True)
    assert page.get("/table/shop.payments/changes?start=1").status_code == 422
    assert page.get("/table/shop.orders/source").status_code == 404


def test_source_that_is_gone_leaves_the_definition(page: TestClient, payments: Path) -> None:
    (payments / "a.parquet").unlink()
    payments.rmdir()
    assert "USING parquet" in page.get("/table/shop.payments").text
    gone = page.get("/table/shop.payments/source")
    assert gone.status_code == 404
    assert str(payments) in gone.text


def test_list_leads_to_views_external_and_attached_tables(
    page: TestClient, lake: kt.Lake, payments: Path
) -> None:
    memory = MemoryConnector()
    memory.create_table("pets", pa.schema([("id", pa.int64())]), ["id"])
    lake.attach("mem", memory.connector)
    shown = page.get("/").text
    for name in ("shop.some", "shop.payments", "mem.pets"):
        assert f'<a href="/table/{name}"><bdi>{name}</bdi></a>' in shown
    assert "table of connector memory" in page.get("/table/mem.pets").text
    assert "mem.pets" not in page.get("/?database=shop").text
    assert "shop.some" not in page.get("/?database=mem").text


def test_federated_table_shows_its_versions_their_changes_and_stories(
    page: TestClient, lake: kt.Lake, tmp_path: Path
) -> None:
    for at in (1, 2):
        rows = pa.table({"id": [1], "at": [at], "paid": [at * 10]})
        deltalake.write_deltalake(str(tmp_path / "far/paid"), rows, mode="append")
    keys = kt.UpsertKeys(["id"], ["at"])
    lake.attach("bank", tmp_path / "far", format="delta", tables={"paid": keys})
    assert "federated table" in page.get("/table/bank.paid").text
    assert "<dt>Version</dt><dd><bdi>1</bdi></dd>" in page.get("/table/bank.paid/source").text
    changed = page.get("/table/bank.paid/changes?start=0").text
    assert "The rows of both versions were compared by key." in changed
    assert "kind-before" in changed
    assert "1 stored version," in page.get("/table/bank.paid/why?key=1&snapshot=0").text
