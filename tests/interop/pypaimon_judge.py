"""Reads and writes tables with pypaimon; run with the Python of `.venv-pypaimon`.

Requests come as lines of JSON on standard input, answers go as lines to standard output; rows
travel in Arrow IPC files that the lines name. It imports nothing of Keytide.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.data_types import PyarrowFieldParser

_METHODS = {
    "=": "equal",
    "<": "less_than",
    "<=": "less_or_equal",
    ">": "greater_than",
    ">=": "greater_or_equal",
    "in": "is_in",
    "is null": "is_null",
    "is not null": "is_not_null",
}


def create(request: dict[str, Any]) -> None:
    """Make a table with the columns of the IPC file `rows`."""
    catalog = CatalogFactory.create({"warehouse": request["warehouse"]})
    catalog.create_database(request["table"].split(".")[0], True)
    schema = Schema.from_pyarrow_schema(
        _rows(request).schema,
        partition_keys=request["partition_by"],
        primary_keys=request["primary_key"],
        options=request["options"],
    )
    catalog.create_table(request["table"], schema, False)


def read(request: dict[str, Any]) -> None:
    """Write the rows of a table to the IPC file `rows`."""
    table = _table(request)
    if request["snapshot_id"] is not None:
        table = table.copy({"scan.snapshot-id": str(request["snapshot_id"])})
    if request["tag"] is not None:
        table = table.copy({"scan.tag-name": request["tag"]})
    builder = table.new_read_builder()
    if request["columns"] is not None:
        builder = builder.with_projection(request["columns"])
    if request["where"]:
        predicates = table.new_read_builder().new_predicate_builder()  # of all columns
        conditions = [_predicate(table, predicates, *term) for term in request["where"]]
        builder = builder.with_filter(predicates.and_predicates(conditions))
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    with pa.OSFile(request["rows"], "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


def write(request: dict[str, Any]) -> None:
    """Append the rows of the IPC file `rows` to a table, in one commit."""
    builder = _table(request).new_batch_write_builder()
    writer, committer = builder.new_write(), builder.new_commit()
    try:
        writer.write_arrow(_rows(request))
        committer.commit(writer.prepare_commit())
    finally:
        writer.close()
        committer.close()


def create_tag(request: dict[str, Any]) -> None:
    """Name the newest snapshot of a table."""
    _table(request).create_tag(request["tag"])


def create_branch(request: dict[str, Any]) -> None:
    """Make a branch of a tag."""
    _table(request).branch_manager().create_branch(request["branch"], request["tag"])


def _rows(request: dict[str, Any]) -> pa.Table:
    with pa.OSFile(request["rows"]) as source:
        return pa.ipc.open_file(source).read_all()


def _table(request: dict[str, Any]) -> Any:
    return CatalogFactory.create({"warehouse": request["warehouse"]}).get_table(request["table"])


def _predicate(table: Any, predicates: Any, column: str, operator: str, literals: list[str]) -> Any:
    kind = PyarrowFieldParser.from_paimon_schema(table.fields).field(column).type
    values = [pa.scalar(literal).cast(kind).as_py() for literal in literals]
    arguments = [values] if operator == "in" else values
    return getattr(predicates, _METHODS[operator])(column, *arguments)


def _serve() -> None:
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever the library prints is no answer
    actions = {
        "create": create, "create_branch": create_branch, "create_tag": create_tag,
        "read": read, "write": write,
    }  # fmt: skip
    for line in sys.stdin:
        request = json.loads(line)
        try:
            actions[request["action"]](request)
            answer = {"refusal": None}
        except Exception as error:
            answer = {"refusal": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
