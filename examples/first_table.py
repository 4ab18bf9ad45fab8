"""A table with a primary key: upserts, a late row, a delete, time travel. `first_table.py [FOLDER]`

It prints

    newest: [(1, 'paid')]
    before the delete: [(1, 'paid'), (2, 'new')]
"""

from __future__ import annotations

import sys
import tempfile

import pyarrow as pa

import keytide as kt

SCHEMA = pa.schema({"id": pa.int64(), "status": pa.string(), "version": pa.int64()})


def main(folder: str) -> None:
    """Create the table, write to it and read it."""
    lake = kt.connect(folder)
    orders = lake.create_table(
        "shop.orders", SCHEMA, primary_key=["id"], options={"sequence.field": "version"}
    )
    orders.write(
        [
            {"id": 1, "status": "paid", "version": 2},
            {"id": 2, "status": "new", "version": 1},
        ]
    )
    orders.write([{"id": 1, "status": "new", "version": 1}])  # arrives late: changes nothing
    before = orders.write([{"id": 1, "status": "paid", "version": 2}]).snapshot_id
    orders.write([{"id": 2, "version": 2, "_row_kind": "-D"}])

    print("newest:", _shown(orders.scan()))
    print("before the delete:", _shown(orders.scan(snapshot_id=before)))


def _shown(scan: kt.Scan) -> list[tuple[int, str]]:
    return sorted((row["id"], row["status"]) for row in scan.to_pylist())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
