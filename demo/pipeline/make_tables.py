"""Creates the tables and the feed of the pipeline in this folder.

python make_tables.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

import keytide as kt

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/keytide-pipeline")

ORDERS = pa.schema({"id": pa.int64(), "status": pa.string(), "version": pa.int64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "country": pa.string()})

FEED = """\
{"id": 1, "status": "paid", "version": 2}
{"id": 2, "status": "new", "version": 1}
{"id": 1, "status": "new", "version": 1}
"""


def main() -> None:
    """Create the tables and the feed."""
    lake = kt.connect(FOLDER / "lake")
    lake.create_table("shop.orders", ORDERS, ["id"], options={"sequence.field": "version"})
    customers = lake.create_table("shop.customers", CUSTOMERS, ["id"])
    customers.write([{"id": 1, "country": "PT"}, {"id": 2, "country": "NO"}])
    customers.write([{"id": 2, "country": "PT"}])
    (FOLDER / "feed").mkdir()
    (FOLDER / "feed/orders.json").write_text(FEED)


if __name__ == "__main__":
    main()
