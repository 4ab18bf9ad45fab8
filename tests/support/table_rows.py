"""The rows of small tables, as tests write them and compare them, and their snapshots.

What is asked for its rows is a table, a scan, changes, or a result in Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pyarrow as pa

import keytide as kt

KINDS = ("+I", "-U", "+U", "-D")


def rows(found: Any) -> list[tuple[Any, ...]]:
    """The rows as sorted tuples."""
    return sorted(rows_in_order(found))


def rows_in_order(found: Any) -> list[tuple[Any, ...]]:
    """The rows as tuples, as they come."""
    return [tuple(row.values()) for row in _dicts(found)]


def row_set(found: Any) -> set[tuple[Any, ...]]:
    """The rows as a set of tuples, which need not be comparable."""
    return set(rows_in_order(found))


def answer(lake: kt.Lake, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query as tuples, as they come."""
    return rows_in_order(lake.sql(query))


def lines(found: Any) -> list[str]:
    """The rows as sorted lines such as `1 5 a`, with `-` for NULL."""
    return sorted(lines_in_order(found))


def lines_in_order(found: Any) -> list[str]:
    """The rows as lines, as they come."""
    return [
        " ".join("-" if value is None else str(value) for value in row)
        for row in rows_in_order(found)
    ]


def dicts(found: Any, by: str = "k") -> list[dict[str, Any]]:
    """The rows as dicts, sorted by a column."""
    return sorted(_dicts(found), key=itemgetter(by))


def rows_by_key(found: Any, key: str = "k") -> dict[Any, dict[str, Any]]:
    """The rows as dicts, by a column that has each value once."""
    every = _dicts(found)
    found_by_key = {row[key]: row for row in every}
    assert len(found_by_key) == len(every), "one row of a key"
    return found_by_key


def by_key(found: Any, *columns: str, key: str = "k") -> dict[Any, Any]:
    """The values of `v`, or of another column or several, by one that has each value once."""
    values = itemgetter(*columns or ("v",))
    return {each: values(row) for each, row in rows_by_key(found, key).items()}


def write_lines(table: kt.Table, *lines: str) -> kt.WriteResult:
    """Write lines such as `1 5 a`, or `-D 1 5` for a delete."""
    return table.write(parsed(table.schema, *lines))


def parsed(schema: pa.Schema, *lines: str) -> list[dict[str, Any]]:
    """The rows of such lines: `-` is NULL, and so is each column for which a line has no more."""
    found = []
    for line in lines:
        words = line.split()
        kind = words.pop(0) if words[0] in KINDS else "+I"
        cells = [*words, *["-"] * (len(schema) - len(words))]
        row = {f.name: _value(cell, f.type) for f, cell in zip(schema, cells, strict=True)}
        found.append({**row, "_row_kind": kind})
    return found


def put(table: kt.Table, values: Mapping[int, Any]) -> None:
    """Write the columns `k` and `v`."""
    table.write([{"k": k, "v": v} for k, v in values.items()])


def reopened(table: kt.Table) -> kt.Table:
    """The table as a reader knows it who has seen nothing before."""
    return kt.Table(table.metadata.store, table.name)


def snapshot_ids(table: kt.Table) -> list[int]:
    """The ids of the snapshots, the oldest first."""
    return [snapshot.id for snapshot in table.snapshots()]


def tag_ids(table: kt.Table) -> dict[str, int]:
    """The ids of the tagged snapshots, by the names of the tags."""
    return {tag.name: tag.snapshot_id for tag in table.tags()}


def _dicts(found: Any) -> list[dict[str, Any]]:
    scanned = found.scan() if isinstance(found, kt.Table | kt.ExternalTable) else found
    every: list[dict[str, Any]] = scanned.to_pylist()
    return every


def _value(cell: str, type_: pa.DataType) -> Any:
    if cell == "-":
        return None
    return int(cell) if pa.types.is_integer(type_) else cell
