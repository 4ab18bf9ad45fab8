"""A lake with something to show, and a browser without a screen that asks for its pages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from ui_requests import ACCESS, Browse, stranger

import keytide as kt


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> kt.Lake:
    """What tests only look at: a table with tags, a branch, an alteration, deletes and a reader."""
    lake = kt.connect(str(tmp_path_factory.mktemp("shown")))
    orders = lake.create_table(
        "shop.orders",
        pa.schema([("id", pa.int64()), ("status", pa.string()), ("qty", pa.int32())]),
        ["id"],
        options={"bucket": "1"},
        comment="what was ordered",
    )
    orders.write([{"id": n, "status": "new", "qty": n} for n in range(1, 6)])
    orders.create_tag("first")
    orders.write([{"id": 2, "status": "paid", "qty": 20}, {"id": 9, "status": "new", "qty": 1}])
    orders.create_branch("trial")
    lake.sql("DELETE FROM shop.orders WHERE id = 3")
    lake.sql("ALTER TABLE shop.orders ADD COLUMN note STRING")
    for _ in orders.follow("full", consumer="reader", timeout_seconds=0):
        pass
    lake.create_table("shop.log", pa.schema([("text", pa.string())]), []).write([{"text": "a"}])
    lake.create_view("shop.open", "SELECT * FROM shop.orders WHERE status = 'new'")
    return lake


@pytest.fixture
def browse() -> Browse:
    """Whoever has opened the address that was printed."""

    def opened(lake: kt.Lake, **given: Any) -> TestClient:
        client = stranger(lake, **given)
        client.cookies.set(ACCESS.cookie, ACCESS.secret)
        return client

    return opened


@pytest.fixture
def page(browse: Browse, shown: kt.Lake) -> TestClient:
    return browse(shown)
