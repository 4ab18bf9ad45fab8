"""The grammar of AUTO CDC: change events of a table or a query into another table.

The syntax is that of pipelines in Spark and Databricks, where a flow runs continuously. Here it is
a statement that processes the events that exist when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keytide.sql.cursor import Cursor
from keytide.sql.statements import ApplyEvents

__all__ = ["apply_changes", "auto_cdc", "create_flow"]


def create_flow(cursor: Cursor) -> ApplyEvents:
    """Parse `CREATE FLOW name AS AUTO CDC INTO ...` after CREATE."""
    cursor.expect("FLOW")
    name = ".".join(cursor.path("the name of a flow"))
    cursor.expect("AS")
    if cursor.peek() == "APPLY":
        return apply_changes(cursor, name)
    return auto_cdc(cursor, name)


def apply_changes(cursor: Cursor, flow: str | None = None) -> ApplyEvents:
    """`APPLY CHANGES INTO ...`, the older syntax for the same."""
    cursor.expect("APPLY", "CHANGES", "INTO")
    return _events(cursor, flow)


def auto_cdc(cursor: Cursor, flow: str | None = None) -> ApplyEvents:
    """`AUTO CDC INTO target FROM source KEYS (...) [clauses] SEQUENCE BY column [clauses]`."""
    cursor.expect("AUTO", "CDC", "INTO")
    return _events(cursor, flow)


def _events(cursor: Cursor, flow: str | None) -> ApplyEvents:
    start, target = cursor.start, cursor.table()
    if target.upper().startswith("LIVE."):
        raise cursor.error_at(
            start, "tables are in databases, and LIVE is not a database: remove it"
        )
    cursor.expect("FROM")
    source = _source(cursor)
    found: dict[str, Any] = {}
    while not cursor.at_end:
        _clause(cursor, found)
    for argument, words in _NEEDED.items():
        if argument not in found:
            raise cursor.error(f"AUTO CDC requires {words}")
    return ApplyEvents(target, source, flow=flow, **found)


_NEEDED = {"keys": "KEYS (...)", "sequence_by": "SEQUENCE BY a column"}


def _source(cursor: Cursor) -> Any:
    """The rows of events. STREAM means the existing rows."""
    if cursor.peek() == "STREAM" and cursor.peek(1) == "(":
        cursor.expect("STREAM", "(")
        source = cursor.all_of(")")
        cursor.expect(")")
        return source
    if cursor.peek() == "STREAM" and cursor.peek(1) not in ("KEYS", "AS", "."):
        cursor.expect("STREAM")
    return cursor.all_of("KEYS")


def _clause(cursor: Cursor, found: dict[str, Any]) -> None:
    start = cursor.start
    for words, read in _CLAUSES.items():
        if cursor.accept(*words.split()):
            for argument, value in read(cursor).items():
                if argument in found:
                    raise cursor.error_at(start, f"{words} is given twice")
                found[argument] = value
            return
    raise cursor.error(f"expected {', '.join(_CLAUSES)} or the end of the statement")


def _keys(cursor: Cursor) -> dict[str, Any]:
    return {"keys": tuple(_columns(cursor))}


def _sequence(cursor: Cursor) -> dict[str, Any]:
    cursor.accept("STRUCT")
    names = _columns(cursor) if cursor.peek() == "(" else [cursor.name("a column")]
    return {"sequence_by": tuple(names)}


def _deletes(cursor: Cursor) -> dict[str, Any]:
    return {"deletes": _condition(cursor)}


def _truncates(cursor: Cursor) -> dict[str, Any]:
    return {"truncates": _condition(cursor)}


def _condition(cursor: Cursor) -> str:
    start = cursor.start
    condition = cursor.up_to(*_CLAUSES)
    if not condition:
        raise cursor.error_at(start, "expected a condition on the columns of the source")
    return condition


def _ignores_nulls(cursor: Cursor) -> dict[str, Any]:
    return {"ignores_nulls": True}


def _scd_type(cursor: Cursor) -> dict[str, Any]:
    for number in (1, 2):
        if cursor.accept(str(number)):
            return {"scd_type": number}
    raise cursor.error("expected SCD TYPE 1 or 2")


def _chosen(kept: str, left_out: str) -> Callable[[Cursor], dict[str, Any]]:
    def read(cursor: Cursor) -> dict[str, Any]:
        if cursor.accept("*", "EXCEPT"):
            return {left_out: tuple(_columns(cursor))}
        return {kept: tuple(_columns(cursor))}

    return read


def _columns(cursor: Cursor) -> list[str]:
    return cursor.listed(lambda: cursor.name("a column"))


_CLAUSES: dict[str, Callable[[Cursor], dict[str, Any]]] = {
    "KEYS": _keys,
    "IGNORE NULL UPDATES": _ignores_nulls,
    "APPLY AS DELETE WHEN": _deletes,
    "APPLY AS TRUNCATE WHEN": _truncates,
    "SEQUENCE BY": _sequence,
    "COLUMNS": _chosen("columns", "except_columns"),
    "STORED AS SCD TYPE": _scd_type,
    "TRACK HISTORY ON": _chosen("tracked", "except_tracked"),
}
