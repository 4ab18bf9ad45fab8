"""What the pages of the documents take for granted: tables, rows and names, page by page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import keytide as kt
from pages import Changed

__all__ = ["ORDERS", "Beginning", "begin", "measured"]

Names = dict[str, Any]
Beginning = tuple[Names, Changed]
"""The names that a page begins with, and what of it reads otherwise where it is run."""

ORDER = {"id": 1, "status": "new", "amount": 2.0}
ORDERS = pa.schema({"id": pa.int64(), "status": pa.string(), "amount": pa.float64()})
_BATCH = pa.schema(
    {"order_id": pa.int64(), "customer_id": pa.int64(), "status": pa.string(), "ts": pa.int64(),
     "deleted": pa.bool_()}
)  # fmt: skip


def begin(page: str, folder: Path) -> Beginning:
    """Make in a folder, which is the working directory, what a page begins with."""
    if page in _BEGINNINGS:
        return _BEGINNINGS[page](folder)
    if page.startswith("how-to/"):
        kt.connect("lake").create_table("shop.orders", ORDERS, ["id"])
    return {}, Changed(folder)


def _batch(*rows: tuple[int, str, int, bool]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(_BATCH.names, (row[0], 1, *row[1:]), strict=True)) for row in rows],
        schema=_BATCH,
    )


def _adopting(folder: Path) -> Beginning:
    from deltalake import write_deltalake
    from pyiceberg.catalog.sql import SqlCatalog

    feeds = folder / "feeds"
    feeds.mkdir()
    write_deltalake(str(feeds / "orders"), _batch((1, "new", 1, False), (2, "gone", 2, True)))
    catalog = SqlCatalog(
        "default", uri=f"sqlite:///{feeds}/catalog.db", warehouse=f"file://{feeds}"
    )
    catalog.create_namespace("warehouse")
    items = pa.table({"item_id": [1, 2]})
    catalog.create_table("warehouse.items", items.schema).append(items)
    events = pa.BufferOutputStream()
    pq.write_table(pa.table({"event_id": [1, 2, 3]}), events)
    _put("bucket", "events/1.parquet", events.getvalue().to_pybytes())
    again = {"CALL sys.adopt_delta(": "DROP TABLE shop.orders; CALL sys.adopt_delta("}
    return {"lake": kt.connect("lake", allow_external_files=True)}, Changed(folder, again)


def _put(bucket: str, key: str, data: bytes) -> None:
    import boto3

    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=data)


def _auto_cdc(folder: Path) -> Beginning:
    lake = kt.connect("lake")
    told = [("c", 1, "Ada", 1), ("u", 1, "Ada L.", 9), ("t", 9, None, 5), ("d", 2, None, 6)]
    columns = [pa.field("op", "string"), pa.field("id", "int64"), pa.field("name", "string"),
               pa.field("lsn", "int64")]  # fmt: skip
    events = pa.table([*map(list, zip(*told, strict=True))], schema=pa.schema(columns))
    of_rows = events.filter(pc.field("op") != "t")
    lake.auto_cdc("shop.history", of_rows, ["id"], "lsn", apply_as_deletes="op = 'd'",
                  stored_as_scd_type=2)  # fmt: skip
    lake.create_table("feed.customers", events.schema, []).write(events)
    return {"lake": lake, "events": events}, Changed(folder)


def _cache(folder: Path) -> Beginning:
    lake = kt.connect("s3://bucket/lake")
    lake.create_table("shop.orders", ORDERS, ["id"]).write([ORDER])
    return {"kt": kt}, Changed(folder)


def _external(folder: Path) -> Beginning:
    from deltalake import write_deltalake

    (folder / "feeds/orders").mkdir(parents=True)
    pq.write_table(
        _batch((17, "new", 1, False), (17, "paid", 2, False), (18, "new", 1, False)),
        folder / "feeds/orders/1.parquet",
    )
    lake = kt.connect("lake", allow_external_files=True)
    customers = pa.schema({"customer_id": pa.int64(), "name": pa.string()})
    lake.create_table("customers", customers, ["customer_id"])
    write_deltalake("s3://bucket/shop/orders", _batch((17, "new", 1, False), (18, "new", 1, False)))
    names = {"lake": lake, "kt": kt, "batch": _batch((19, "new", 1, False))}
    again = "CREATE EXTERNAL TABLE orders"
    return names, Changed(folder, {again: f"DROP TABLE orders; {again}"})


def _lazy(folder: Path) -> Beginning:
    lake = kt.connect("lake")
    schema = pa.schema({"id": pa.int64(), "status": pa.string(), "qty": pa.int32()})
    table = lake.create_table("shop.orders", schema, ["id"])
    table.write([{"id": 1, "status": "new", "qty": 2}])
    return {"lake": lake, "t": table}, Changed(folder)


def _observing(folder: Path) -> Beginning:
    return {"kt": kt}, Changed(folder)


def _publishing(folder: Path) -> Beginning:
    import pyiceberg.table

    lake = kt.connect("lake")
    orders = lake.create_table("orders", ORDERS, ["id"])
    orders.write([ORDER])
    orders.compact(full=True)
    return {"lake": lake, "polars": pl, "pyiceberg": pyiceberg}, Changed(folder)


def _scheduled(folder: Path) -> Beginning:
    kt.connect("s3://sales/lake").create_table("shop.orders", ORDERS, ["id"])
    return {}, Changed(folder)


def _semantics(folder: Path) -> Beginning:
    schema = pa.schema({"id": pa.int64(), "qty": pa.int32(), "dt": pa.date32()})
    orders = kt.connect("lake").create_table("shop.orders", schema, ["id"])
    return {"orders": orders, "kt": kt, "pl": pl, "pc": pc}, Changed(folder)


def _sql(folder: Path) -> Beginning:
    lake = kt.connect("lake")
    schema = pa.schema({"order_id": pa.int64(), "status": pa.string(), "version": pa.int64()})
    orders = lake.create_table("shop.orders", schema, ["order_id"])
    for number in range(7):
        orders.write([{"order_id": number, "status": "new", "version": 1}])
    measured(lake, "shop.sales")
    now = datetime.now(timezone.utc) + timedelta(seconds=1)
    texts = {
        "2026-01-31 12:00:00": f"{now:%Y-%m-%d %H:%M:%S}",
        "shop.orders WHERE day": "shop.sales WHERE day",
    }
    return {"lake": lake}, Changed(folder, texts)


def measured(lake: kt.Lake, name: str) -> None:
    """Make a table with the columns of the query that the page about SQL measures."""
    lake.sql(f"""
        CREATE TABLE {name} (id INT, status STRING, day STRING, amount BIGINT,
          PRIMARY KEY (id, day) NOT ENFORCED) PARTITIONED BY (day) WITH ('bucket' = '1');
        INSERT INTO {name} VALUES (1, 'new', '2026-01-31', 200), (2, 'new', '2026-01-31', 2);
        INSERT INTO {name} VALUES (3, 'new', '2026-02-01', 200);
        INSERT INTO {name} VALUES (1, 'paid', '2026-01-31', 200)
    """)


def _ui(folder: Path) -> Beginning:
    (folder / "data/lake").mkdir(parents=True)
    return {}, Changed(folder)


_BEGINNINGS: dict[str, Callable[[Path], Beginning]] = {
    "adopting.md": _adopting,
    "auto-cdc.md": _auto_cdc,
    "cache.md": _cache,
    "external-tables.md": _external,
    "lazy.md": _lazy,
    "observing.md": _observing,
    "publishing.md": _publishing,
    "how-to/scheduled-jobs.md": _scheduled,
    "semantics.md": _semantics,
    "sql.md": _sql,
    "ui.md": _ui,
}
