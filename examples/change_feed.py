"""Decodes change events in Debezium format and applies them in any order. `change_feed.py [FOLDER]`

It prints

    [(1, 'Ada', 'Bonn'), (3, 'Cleo', 'Lyon')]
    the same in reverse: True
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import keytide as kt
from keytide import cdc

FORMAT = "debezium-json"


def message(op: str, lsn: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """An event as the PostgreSQL connector writes it, without its schema."""
    source = {"connector": "postgresql", "lsn": lsn, "ts_ms": lsn, "snapshot": "false"}
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": lsn, "source": source})


FEED = [
    message("c", 1, None, {"id": 1, "name": "Ada", "city": "Oslo"}),
    message("c", 2, None, {"id": 2, "name": "Ben", "city": "Rome"}),
    message(
        "u", 3, {"id": 1, "name": "Ada", "city": "Oslo"}, {"id": 1, "name": "Ada", "city": "Bonn"}
    ),
    message("d", 4, {"id": 2, "name": "Ben", "city": "Rome"}, None),
    message("c", 5, None, {"id": 3, "name": "Cleo", "city": "Lyon"}),
]


def main(folder: str) -> None:
    """Apply the feed twice, the second time in reverse order."""
    lake = kt.connect(folder)
    rows = applied(lake, "shop.customers", FEED)
    print(rows)
    print("the same in reverse:", applied(lake, "shop.reversed", reversed(FEED)) == rows)


def applied(lake: kt.Lake, name: str, feed: Iterable[str]) -> list[tuple[int, ...]]:
    """The rows of a table after it has loaded the feed message by message."""
    sequence = cdc.default_sequence(pa.array(FEED), FORMAT)
    order = [source.column for source in sequence]
    spec = cdc.FeedSpec(
        FORMAT,
        columns=(
            *cdc.infer_columns(pa.array(FEED), FORMAT),
            *(source.to_field() for source in sequence),
        ),
        primary_key=("id",),
        sequence=sequence,
    )
    for line in feed:
        rows = cdc.decode(pa.array([line]), spec).rows
        lake.auto_cdc(name, rows, keys=["id"], sequence_by=order)
    rows = lake.table(name).scan(["id", "name", "city"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
