"""ClickHouse (chdb) behind the judge's protocol, for tables of the format itself.

    python -m keytide.testing.judge --form paimon PYTHON tests/interop/clickhouse_reader.py

PYTHON is one with chdb, as in `requirements-bench.lock`. It imports nothing of Keytide.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import chdb

_SETTINGS = "output_format_json_quote_denormals = 1, output_format_json_quote_64bit_integers = 0"
_BINARY = ("BINARY", "VARBINARY", "BYTES")


def query(asked: dict[str, Any]) -> str:
    """What reads a table, with bytes in base64, and true and false as such."""
    if {"snapshot", "tag", "branch"} & asked.keys():
        raise ValueError("paimonLocal reads the latest snapshot of the main branch only")
    columns = ", ".join(_column(name, kind) for name, kind in asked["columns"].items())
    path = asked["path"].lstrip("/")
    return f"SELECT {columns} FROM paimonLocal('{path}') SETTINGS {_SETTINGS}"


def _column(name: str, kind: str) -> str:
    if kind.startswith(_BINARY):
        return f"base64Encode(`{name}`) AS `{name}`"
    if kind.startswith("BOOLEAN"):
        return f"CAST(`{name}` AS Nullable(Bool)) AS `{name}`"
    return f"`{name}`"


def main() -> None:
    """Answer requests until there are no more."""
    os.chdir("/")  # ClickHouse reads no files outside of this folder
    for line in sys.stdin:
        try:
            answer = str(chdb.query(query(json.loads(line)), "JSONEachRow")).strip()
        except Exception as error:
            answer = json.dumps(str(error)[:500])
        print(f"{answer}\n" * bool(answer), flush=True)


if __name__ == "__main__":
    main()
