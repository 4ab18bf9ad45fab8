"""Reads Delta and Iceberg tables with DuckDB; run with the Python of `.venv-duckdb`.

Queries come as lines of JSON on standard input, answers go as lines to standard output; rows travel
in the Parquet files that the lines name. It imports nothing of Keytide.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb

EXTENSIONS = ("avro", "delta", "iceberg")


def opened() -> duckdb.DuckDBPyConnection:
    """A database with the extensions that lie beside its package; it asks for no others."""
    packages = Path(duckdb.__file__).parents[1]
    database = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1})
    for name in EXTENSIONS:
        (extension,) = packages.glob(f"duckdb_extension_{name}/**/{name}.duckdb_extension")
        database.execute(f"LOAD '{extension}'")
    return database


def main() -> None:
    database = opened()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            database.execute(f"COPY ({asked['query']}) TO '{asked['rows']}' (FORMAT parquet)")
            answer = None
        except duckdb.Error as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps({"refusal": answer}), flush=True)


if __name__ == "__main__":
    main()
