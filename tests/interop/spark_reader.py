"""Spark behind the judge's protocol, for Delta and Iceberg tables; run as `lake_writers.py` is.

    python -m keytide.testing.judge --form delta \\
        .venv-spark-peers/bin/python tests/interop/spark_reader.py SCRATCH

It imports nothing of Keytide.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lake_writers import session
from pyspark.sql import SparkSession
from pyspark.sql.functions import map_entries, struct, to_json

_SPELLINGS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


def read(spark: SparkSession, asked: dict[str, Any]) -> list[str]:
    """The rows of a table as lines of JSON."""
    rows = spark.read.format(asked["form"]).load(asked["path"])
    # As keys of an object, Spark spells dates in its own way.
    columns = [
        map_entries(f.name).alias(f.name) if f.dataType.typeName() == "map" else f.name
        for f in rows.schema.fields
    ]
    lines = rows.select(to_json(struct(*columns), _SPELLINGS).alias("line")).collect()
    return [line["line"] for line in lines]


def main(scratch: Path) -> None:
    """Answer requests until there are no more."""
    spark = session(scratch)
    for line in sys.stdin:
        try:
            answer = read(spark, json.loads(line))
        except Exception as error:
            answer = [json.dumps(str(error)[:500])]
        print("\n".join([*answer, ""]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
