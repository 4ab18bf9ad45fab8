"""Loads a real change feed into three tables, and compares them with the rows of the server.

`demo/data/cdc` contains the change events of a PostgreSQL server that many clients changed. The
events are out of order, and some arrive twice. `final.parquet` contains the final rows of the
server. Spark Structured Streaming loads the feed of each table, one file per micro-batch, into a
table with a primary key. Then the demo compares the table with the rows of the server, row by row
and column by column.

The table of accounts has a key index, so reads do not merge. The other tables merge on read. The
table of orders stores a changelog of every write. A separate process maintains a copy of it: a
Spark stream that reads only this changelog. The demo kills this process and starts it again. At
the end, the copy is equal to the table.

All output is in `demo-output/`. A second run finds that all files are applied, and changes nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from copier import Copier

import keytide as kt
from keytide.feeds.feed import IngestReport

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent / "demo-output"
WAREHOUSE = OUTPUT / "warehouse"
ORDERS = "shop.orders"


@dataclass(frozen=True)
class Feed:
    """One source table: its columns, its key, and the columns whose export needs a conversion."""

    name: str
    columns: str
    primary_key: tuple[str, ...]
    empty_as_null: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Path:
        return HERE / "data" / "cdc" / self.name

    def expected(self) -> pa.Table:
        return pq.read_table(self.files / "final.parquet")


FEEDS = (
    Feed(
        "orders",
        "order_id BIGINT, customer_id INT, status STRING, amount DECIMAL(12, 2), currency STRING,"
        " note STRING, is_gift BOOLEAN, weight_kg DOUBLE, placed_on DATE,"
        " updated_at TIMESTAMP(6) WITH LOCAL TIME ZONE, detail STRING, tags STRING",
        ("order_id",),
        options={"changelog-producer": "lookup"},
    ),
    Feed(
        "order_items",
        "order_id BIGINT, line_no INT, sku STRING, quantity INT, unit_price DECIMAL(10, 4)",
        ("order_id", "line_no"),
    ),
    Feed(
        "pgbench_accounts",
        "aid INT, bid INT, abalance INT, filler STRING",
        ("aid",),
        # A blank-padded CHAR column: it is '' in the feed, and NULL in the export of the server.
        empty_as_null=("filler",),
        options={"upsert.mode": "full"},
    ),
)


def main() -> int:
    started = time.perf_counter()
    OUTPUT.mkdir(exist_ok=True)
    spark = kt.spark.session()
    lake = kt.connect(WAREHOUSE, spark=spark)
    copier = Copier(lake, WAREHOUSE, ORDERS, OUTPUT / "checkpoints" / "copy")
    all_equal = True
    try:
        for feed in FEEDS:
            print(f"\n== {feed.name}")
            show(run(lake, feed, str(feed.files / "changes-*.jsonl.gz"), "checkpoints"))
            all_equal &= compare(lake.table(f"shop.{feed.name}"), feed)
            if feed is FEEDS[0]:
                copier.start()  # copies while the other feeds are loaded
        print("\n== the last file of orders again, as an at-least-once feed would send it")
        again = run(lake, FEEDS[0], str(FEEDS[0].files / "changes-006*"), f"again-{time.time_ns()}")
        show(again)
        all_equal &= compare(lake.table(ORDERS), FEEDS[0])
    finally:
        spark.stop()
    print("\n== a copy of orders, made only from its changelog")
    all_equal &= copier.finish()
    verdict = "equal to the server's rows" if all_equal else "DIFFERENT from the server's rows"
    print(f"\nall tables are {verdict}; {time.perf_counter() - started:.0f} s in total")
    print(f"to see more: .venv/bin/keytide describe -w {OUTPUT.name}/warehouse shop.orders")
    return 0 if all_equal else 1


def run(lake: kt.Lake, feed: Feed, source: str, checkpoints: str) -> IngestReport:
    return lake.ingest(
        f"shop.{feed.name}",
        source,
        format="debezium-json",
        schema=feed.columns,
        primary_key=feed.primary_key,
        sequence_by=("source.lsn",),
        options=feed.options,
        empty_as_null=feed.empty_as_null,
        checkpoint=str(OUTPUT / checkpoints / feed.name),
        max_files_per_batch=1,
    )


def show(report: IngestReport) -> None:
    print(
        f"{'batch':>7}{'rows in':>10}{'applied':>10}{'late':>8}{'duplicate':>11}"
        f"{'rejected':>10}{'s':>7}"
    )
    for batch in report.batches:
        print(
            f"{batch.batch_id:>7}{batch.rows_in:>10,}{batch.applied:>10,}{batch.late:>8,}"
            f"{batch.duplicate:>11,}{batch.rejected:>10,}{batch.seconds:>7.1f}"
        )
    if not report.batches:
        print("every file was applied before: nothing to do")


def compare(table: kt.Table, feed: Feed) -> bool:
    expected = feed.expected()
    found = table.scan(columns=expected.column_names).to_arrow()
    key = list(feed.primary_key)
    same_types = found.schema.types == expected.schema.types
    left, right = (pl.DataFrame(rows).sort(key) for rows in (found, expected))
    equal = same_types and left.equals(right)
    columns = len(expected.column_names)
    print(f"{left.height:,} rows x {columns} columns, {'equal' if equal else 'DIFFERENT'}")
    return equal


if __name__ == "__main__":
    sys.exit(main())
