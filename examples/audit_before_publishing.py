"""Checks rows in a branch before readers see them. `audit_before_publishing.py [FOLDER]`

It prints

    refused: 1 row with a negative price
    readers see: [(1, 10.0)]
    published: [(1, 10.0), (2, 12.0)]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import pyarrow as pa

import keytide as kt

SCHEMA = pa.schema({"sku": pa.int64(), "price": pa.float64()})


def main(folder: str) -> None:
    """Try to publish a bad batch, then a good one."""
    lake = kt.connect(folder)
    prices = lake.create_table("shop.prices", SCHEMA, primary_key=["sku"])
    prices.write([{"sku": 1, "price": 10.0}])

    publish(prices, [{"sku": 2, "price": -12.0}])
    print("readers see:", _shown(prices))
    publish(prices, [{"sku": 2, "price": 12.0}])
    print("published:", _shown(prices))


def publish(table: kt.Table, rows: list[dict[str, Any]]) -> None:
    """Write to a branch, check it, and fast-forward the table to it if it is valid."""
    trial = table.create_branch("audit")
    trial.write(rows)
    bad = trial.scan(where="price < 0").count()
    if bad:
        print(f"refused: {bad} row with a negative price")
    else:
        table.fast_forward("audit")
    table.delete_branch("audit")


def _shown(table: kt.Table) -> list[tuple[int, float]]:
    return sorted((row["sku"], row["price"]) for row in table.scan().to_pylist())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
