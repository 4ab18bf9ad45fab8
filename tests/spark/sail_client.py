"""Reads of a lake on Sail, which tests/spark/test_sail.py looks at: `sail_client.py FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

import keytide as kt
import pyspark_keytide

server = SparkConnectServer()
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://localhost:{server.listening_address[1]}").getOrCreate()
spark.dataSource.register(pyspark_keytide.DefaultSource)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(first: int, last: int, v: str) -> list[dict[str, Any]]:
    return [{"id": number, "v": v} for number in range(first, last)]


def read(warehouse: Path) -> list[Any]:
    """Counts of one table: read natively, filtered, merged, compacted, and by the data source."""
    table = kt.connect(str(warehouse)).create_table("t", SCHEMA, ["id"])
    table.write(rows(0, 100, "old"))
    try:
        counts = [table.scan().to_spark(spark).count()]
        counts.append(table.scan(where="id < 7").to_spark(spark).count())
    except kt.UnsupportedError as error:
        return [str(error)]
    table.write(rows(50, 150, "new"))
    counts.append(table.scan().to_spark(spark).count())
    table.compact(full=True)
    counts.append(table.scan().to_spark(spark).count())
    counts.append(spark.read.format("keytide").load(table.uri).count())
    return counts


folder = Path(sys.argv[1])
found = {name: read(folder / name) for name in ("plain", "a b", "a%20b", "a=b,c", "a[1]b", "a*b")}
print("FOUND", json.dumps(found))
spark.stop()
server.stop()
