"""Other readers behind the judge's protocol: rows of each requested table, as lines of JSON.

python -m keytide.testing.judge python tests/interop/judged_readers.py pypaimon
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import deltalake
import polars as pl
import pyarrow as pa
from interop_judges import Pypaimon, PypaimonProcess, PypaimonRust
from pyiceberg.table import StaticTable

import duckdb_reader
import keytide as kt
from keytide.base.text import json_lines

__all__ = ["READERS"]

Asked = dict[str, Any]
Read = Callable[[Asked], pa.Table]


def _java(release: str) -> Read:
    from java_judge import JAVA_RELEASES, JavaGateway, JavaPaimon

    gateway = JavaGateway([JAVA_RELEASES[release]], Path(tempfile.mkdtemp()))

    def read(asked: Asked) -> pa.Table:
        java = JavaPaimon(asked["warehouse"], gateway, release)
        return java.read(asked["table"], branch=asked.get("branch"), **_state(asked))

    return read


def _pypaimon() -> Read:
    process = PypaimonProcess(Path(tempfile.mkdtemp()))
    return lambda asked: Pypaimon(asked["warehouse"], process).read(_name(asked), **_state(asked))


def _pypaimon_rust() -> Read:
    return lambda asked: PypaimonRust(asked["warehouse"]).read(_name(asked), **_state(asked))


def _name(asked: Asked) -> str:
    return f"{asked['table']}$branch_{asked['branch']}" if "branch" in asked else asked["table"]


def _state(asked: Asked) -> dict[str, Any]:
    return {"snapshot_id": asked.get("snapshot"), "tag": asked.get("tag")}


def _deltalake(asked: Asked) -> pa.Table:
    table = deltalake.DeltaTable(asked["path"])
    return pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def _pyiceberg(asked: Asked) -> pa.Table:
    return StaticTable.from_metadata(asked["path"]).scan().to_arrow()


def _polars(asked: Asked) -> pa.Table:
    if asked["form"] == "delta":
        return pl.scan_delta(asked["path"]).collect().to_arrow()
    return pl.scan_iceberg(StaticTable.from_metadata(asked["path"])).collect().to_arrow()


def _duckdb(asked: Asked) -> pa.Table:
    return duckdb_reader.read(asked["path"], asked["form"])


def _in_plain_types(rows: pa.Table, columns: dict[str, str]) -> pa.Table:
    """The same values without views, large offsets and names of list elements."""
    plain = {name: kt.parse_sql_type(text).to_arrow() for name, text in columns.items()}
    fields = [
        pa.field(name, plain.get(name, rows.schema.field(name).type)) for name in rows.column_names
    ]
    return rows.cast(pa.schema(fields))


BOTH = ("delta", "iceberg")
READERS: dict[str, tuple[tuple[str, ...], Callable[[], Read]]] = {
    "Java Paimon 1.4.2": (("paimon",), partial(_java, "java-1.4.2")),
    "Java Paimon 2.0.0": (("paimon",), partial(_java, "java-2.0.0")),
    "pypaimon": (("paimon",), _pypaimon),
    "pypaimon-rust": (("paimon",), _pypaimon_rust),
    "deltalake": (("delta",), lambda: _deltalake),
    "pyiceberg": (("iceberg",), lambda: _pyiceberg),
    "Polars": (BOTH, lambda: _polars),
    "DuckDB": (BOTH, lambda: _duckdb),
}
"""The forms of each, and what opens it."""


def main(name: str) -> None:
    """Answer requests until there are no more. Whatever a reader raises is a refusal."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what a library prints is no answer
    _, opened = READERS[name]
    read = opened()
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            rows = _in_plain_types(read(asked), asked["columns"])
            answer = b"".join(map(json_lines, rows.to_batches()))
        except Exception as error:
            answer = json.dumps(f"{type(error).__name__}: {error}"[:500]).encode() + b"\n"
        answers.write(answer + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
