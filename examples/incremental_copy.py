"""A copy that follows a table and resumes where it stopped. `incremental_copy.py [FOLDER]`

It prints

    1st run: 2 changes
    2nd run: 3 changes
    3rd run: 0 changes
    equal: True
"""

from __future__ import annotations

import sys
import tempfile

import pyarrow as pa

import keytide as kt

SCHEMA = pa.schema({"id": pa.int64(), "qty": pa.int64()})


def main(folder: str) -> None:
    """Write, copy, write, copy."""
    lake = kt.connect(folder)
    stock = lake.create_table("shop.stock", SCHEMA, primary_key=["id"])
    copy = lake.create_table("shop.copy", SCHEMA, primary_key=["id"])

    stock.write([{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
    print("1st run:", copy_changes(stock, copy), "changes")
    stock.write([{"id": 1, "qty": 4}])
    stock.write([{"id": 2, "_row_kind": "-D"}])
    print("2nd run:", copy_changes(stock, copy), "changes")
    print("3rd run:", copy_changes(stock, copy), "changes")
    print("equal:", stock.scan().to_pylist() == copy.scan().to_pylist())


def copy_changes(source: kt.Table, target: kt.Table) -> int:
    """Bring the target up to date. The source stores the position under a consumer name."""
    count = 0
    for batch in source.follow(consumer="copy", timeout_seconds=0):
        target.write(batch)
        count += batch.num_rows
    return count


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
