"""A lake that is worth a look: what screenshots show.

python tests/ui/ui_lake.py FOLDER [--writing]     makes it, and writes to it until Ctrl-C
"""

from __future__ import annotations

import random
import sys
import time
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import keytide as kt

_STATUSES = ("new", "paid", "packed", "shipped", "returned")
_CITIES = ("Lisboa", "Łódź", "Zürich", "東京", "Αθήνα", "القاهرة")
_BEGUN = datetime(2026, 1, 1, 8)


def make(folder: str) -> kt.Lake:
    """A shop with a table of every kind, and a history in the one of orders."""
    lake = kt.connect(folder)
    chance = random.Random(7)
    orders = _orders(lake)
    for turn in range(14):
        first = turn * 220
        _write(orders, [_order(chance, n) for n in range(first, first + 220)])
        if turn:
            changed = [chance.randrange(first) for _ in range(60 + turn * 9)]
            _write(orders, [_order(chance, n) for n in changed])
        if turn in (4, 9):
            orders.create_tag(f"2026-01-0{turn}")
        if turn == 7:
            orders.create_branch("pricing-trial")
            lake.sql("ALTER TABLE shop.orders ADD COLUMN city STRING")
            lake.sql("DELETE FROM shop.orders WHERE status = 'returned'")
    for _ in orders.follow("full", consumer="billing", timeout_seconds=0):
        break
    for _ in orders.follow("full", consumer="search-index", timeout_seconds=0):
        pass
    _others(lake, chance)
    return lake


def _orders(lake: kt.Lake) -> kt.Table:
    return lake.create_table(
        "shop.orders",
        pa.schema(
            [
                pa.field("id", pa.int64(), metadata={"comment": "given by the shop"}),
                ("status", pa.string()),
                ("amount", pa.decimal128(9, 2)),
                ("changed", pa.timestamp("ms")),
            ]
        ),
        ["id"],
        options={
            "bucket": "2",
            "sequence.field": "changed",
            "num-sorted-run.compaction-trigger": "9",
            "deletion-vectors.enabled": "false",
        },
        comment="Every order of the shop, as its database tells of it",
    )


def _write(orders: kt.Table, rows: list[dict[str, object]]) -> None:
    columns = orders.schema.names
    orders.write([{name: row[name] for name in columns} for row in rows])


def _order(chance: random.Random, number: int) -> dict[str, object]:
    return {
        "id": number,
        "status": chance.choice(_STATUSES),
        "amount": Decimal(chance.randrange(500, 25_000)) / 100,
        "changed": _BEGUN + timedelta(seconds=chance.randrange(4_000_000)),
        "city": chance.choice(_CITIES),
    }


def _others(lake: kt.Lake, chance: random.Random) -> None:
    columns = pa.schema([("sku", pa.string()), ("city", pa.string()), ("stock", pa.int32())])
    stock = lake.create_table(
        "shop.stock", columns, ["sku", "city"], ["city"],
        options={"bucket": "1", "deletion-vectors.enabled": "true"},
    )  # fmt: skip
    for _ in range(4):
        stock.write(
            [{"sku": f"S-{n:04}", "city": chance.choice(_CITIES), "stock": chance.randrange(90)}
             for n in range(300)]
        )  # fmt: skip
    log = lake.create_table("web.log", pa.schema([("at", pa.int64()), ("text", pa.string())]), [])
    log.write([{"at": n, "text": f"<b>request {n}</b>"} for n in range(50)])
    for name in ("prices", "returns", "customers"):
        lake.create_table(f"shop.{name}", columns, ["sku", "city"])
    lake.create_view("shop.open_orders", "SELECT * FROM shop.orders WHERE status = 'new'")
    _external(lake)


def _external(lake: kt.Lake) -> None:
    """A table of Parquet files beside the lake, as another engine writes them."""
    elsewhere = Path(f"{lake.uri}-elsewhere/payments")
    elsewhere.mkdir(parents=True, exist_ok=True)
    for part in range(3):
        rows = [{"order_id": n, "paid": n * 10 + part, "at": part} for n in range(part * 5, 20)]
        pq.write_table(pa.Table.from_pylist(rows), elsewhere / f"part-{part}.parquet")
    lake.create_external_table(
        "shop.payments", format="parquet", location=str(elsewhere), primary_key=["order_id"],
        watermark_key=["at"], comment="Payments as the bank's export has them",
    )  # fmt: skip


def write_on(lake: kt.Lake) -> None:
    """Orders that come every second."""
    chance = random.Random(1)
    orders = lake.table("shop.orders")
    number = 0
    while True:
        number += 1
        rows = [_order(chance, chance.randrange(4000)) for _ in range(chance.randrange(5, 300))]
        orders.write(rows, commit_user="stream-of-orders", commit_identifier=number)
        time.sleep(1)


if __name__ == "__main__":
    made = make(sys.argv[1])
    if "--writing" in sys.argv:
        write_on(made)
