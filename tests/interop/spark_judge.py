"""Reads and changes Delta and Iceberg tables by SQL on Spark; run as `lake_writers.py` is.

Statements come as lines of JSON on standard input, answers go as lines to standard output. It
imports nothing of Keytide.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lake_values import plain
from lake_writers import session


def main(scratch: Path) -> None:
    spark = session(scratch)
    for line in sys.stdin:
        try:
            rows = spark.sql(json.loads(line)).collect()
            answer = {"rows": [[plain(value) for value in row] for row in rows]}
        except Exception as error:
            answer = {"refusal": str(error)[:2000]}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
