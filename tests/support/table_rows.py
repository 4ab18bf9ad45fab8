"""The rows of small tables, as tests write them and compare them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import keytide as kt

KINDS = ("+I", "-U", "+U", "-D")


def rows(found: Any) -> list[tuple[Any, ...]]:
    """The rows of a table, a scan, changes or a result, as sorted tuples."""
    return sorted(rows_in_order(found))


def rows_in_order(found: Any) -> list[tuple[Any, ...]]:
    """The same in the order in which they come."""
    return [tuple(row.values()) for row in dicts(found)]


def lines(found: Any) -> list[str]:
    """The rows as sorted lines such as `1 5 a`, with `-` for NULL."""
    return sorted(lines_in_order(found))


def lines_in_order(found: Any) -> list[str]:
    """The same in the order in which they come."""
    return [
        " ".join("-" if value is None else str(value) for value in row)
        for row in rows_in_order(found)
    ]


def values_by_key(found: Any, key: str = "k", value: str = "v") -> dict[Any, Any]:
    """One column by another, of which no value comes twice."""
    return {each: row[value] for each, row in rows_by_key(found, key).items()}


def rows_by_key(found: Any, key: str = "k") -> dict[Any, dict[str, Any]]:
    """The rows as dicts, by a column of which no value comes twice."""
    each = dicts(found)
    by_key = {row[key]: row for row in each}
    assert len(by_key) == len(each), "one row of a key"
    return by_key


def dicts(found: Any) -> list[dict[str, Any]]:
    """The rows as dicts, in the order in which they come."""
    scanned = found.scan() if isinstance(found, kt.Table | kt.ExternalTable) else found
    each: list[dict[str, Any]] = scanned.to_pylist()
    return each


def written(table: kt.Table, *texts: str) -> kt.WriteResult:
    """Write lines such as `1 5 a` or `-D 1 5` to a table."""
    return table.write(parsed(table.schema, *texts))


def parsed(schema: pa.Schema, *texts: str) -> list[dict[str, Any]]:
    """Rows of lines such as `1 5 a` or `-D 1 5`: `-` is NULL, as is what is not there."""
    found = []
    for text in texts:
        words = text.split()
        kind = words.pop(0) if words[0] in KINDS else "+I"
        cells = words + ["-"] * (len(schema) - len(words))
        values = zip(schema, cells, strict=True)
        row = {f.name: None if cell == "-" else _cell(cell, f.type) for f, cell in values}
        found.append({**row, "_row_kind": kind})
    return found


def _cell(text: str, type_: pa.DataType) -> Any:
    return int(text) if pa.types.is_integer(type_) else text
