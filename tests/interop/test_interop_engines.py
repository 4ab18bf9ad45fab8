"""Merge engines other than `deduplicate`: what they make of one history is the same everywhere.

What an engine of another cannot do is listed here with how it ends.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pytest
from interop_judges import Judge, Outcome, assert_reads_alike, expecting
from interop_values import arrow_rows, field

import keytide as kt

COLUMNS = {
    "k": "INT NOT NULL", "n": "BIGINT", "d": "DECIMAL(10, 2)", "f": "DOUBLE", "s": "STRING",
    "b": "BOOLEAN", "t": "TIMESTAMP(3)", "a": "ARRAY<INT>", "g": "INT", "h": "INT",
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "k": list(range(6)),
    "n": [-2, 1, 3, None],
    "d": [Decimal("-1.25"), Decimal("0.50"), None],
    "f": [-0.5, 0.25, 2.0, None],
    "s": ["", "a", "é", None],
    "b": [True, False, None],
    "t": [-1, 0, 1, None],
    "a": [[], [1, 2], None],
    "g": [1, 2, 3, None],
    "h": [1, 2, 3, None],
}
NOTHING: dict[str, str] = {}
PARTIAL = {"merge-engine": "partial-update"}
AGGREGATION = {"merge-engine": "aggregation"}
ENGINES: dict[str, dict[str, str]] = {
    "partial-update": PARTIAL,
    "partial-update, sequence field": {**PARTIAL, "sequence.field": "g"},
    "partial-update, ignore-delete": {**PARTIAL, "ignore-delete": "true"},
    "partial-update, sequence groups": {
        **PARTIAL,
        "fields.g.sequence-group": "n,s",
        "fields.h.sequence-group": "f,t",
    },
    "partial-update, aggregates": {
        **PARTIAL,
        "fields.n.aggregate-function": "sum",
        "fields.s.aggregate-function": "last_value",
        "fields.g.sequence-group": "n,s",
    },
    "aggregation, default": {**AGGREGATION, "fields.default-aggregate-function": "last_value"},
    "aggregation, sequence field": {**AGGREGATION, "sequence.field": "g"},
    **{
        f"aggregation, {function} of {column}": {
            **AGGREGATION,
            f"fields.{column}.aggregate-function": function,
        }
        for column, functions in {
            "n": ["sum", "product", "max", "min", "last_value", "first_value"],
            "d": ["sum", "max"],
            "f": ["sum", "min", "first_non_null_value"],
            "s": ["listagg", "max", "last_non_null_value", "first_value"],
            "b": ["bool_and", "bool_or"],
            "t": ["max", "min"],
            "a": ["collect"],
        }.items()
        for function in functions
    },
}
RETRACTING: dict[str, dict[str, str]] = {
    "partial-update, remove-record-on-delete": {
        **PARTIAL,
        "partial-update.remove-record-on-delete": "true",
    },
    "partial-update, ignore-delete": ENGINES["partial-update, ignore-delete"],
    "partial-update, sequence groups": ENGINES["partial-update, sequence groups"],
    "partial-update, remove-record-on-sequence-group": {
        **ENGINES["partial-update, sequence groups"],
        "partial-update.remove-record-on-sequence-group": "g",
    },
    "partial-update, aggregates": ENGINES["partial-update, aggregates"],
    "aggregation, remove-record-on-delete": {
        **AGGREGATION,
        "fields.n.aggregate-function": "sum",
        "aggregation.remove-record-on-delete": "true",
    },
    "aggregation, ignore-retract": {
        **AGGREGATION,
        "fields.default-aggregate-function": "last_non_null_value",
        "fields.n.aggregate-function": "max",
        "fields.n.ignore-retract": "true",
    },
    "aggregation, sum": {**AGGREGATION, "fields.n.aggregate-function": "sum"},
    "aggregation, product": {**AGGREGATION, "fields.n.aggregate-function": "product"},
    "aggregation, collect": {**AGGREGATION, "fields.a.aggregate-function": "collect"},
    "aggregation, last_value": {
        **AGGREGATION,
        "fields.default-aggregate-function": "last_value",
    },
    "first-row, ignore-delete": {"merge-engine": "first-row", "ignore-delete": "true"},
}
REFUSED: dict[tuple[str, str], Outcome] = {}
REFUSED_RETRACTS: dict[tuple[str, str], Outcome] = {}


def history(kinds: list[str]) -> list[dict[str, list[Any]]]:
    """Columns of the rows of several commits, always the same."""
    choice = random.Random(20_240_229)
    commits = []
    for _ in range(6):
        keys = choice.choices(VALUES["k"], k=8)
        others = {name: choice.choices(VALUES[name], k=8) for name in COLUMNS if name != "k"}
        commits.append({"k": keys, **others, "_row_kind": choice.choices(kinds, k=8)})
    return commits


def a_table(lake: kt.Lake, options: dict[str, str]) -> kt.Table:
    fields = [field(name, text) for name, text in COLUMNS.items()]
    return lake.create_table("db.t", fields, ["k"], options={"bucket": "2", **options})


@pytest.mark.parametrize("engine", ENGINES)
def test_interop_engine_merges_inserts_alike(judge: Judge, lake: kt.Lake, engine: str) -> None:
    table = a_table(lake, ENGINES[engine])
    for commit in history(["+I", "+U"]):
        table.write(arrow_rows(table.schema, commit))
    with expecting(REFUSED.get((judge.name, engine))):
        assert len(assert_reads_alike(judge, table)) == len(VALUES["k"])


@pytest.mark.parametrize("engine", RETRACTING)
def test_interop_engine_merges_retracts_alike(judge: Judge, lake: kt.Lake, engine: str) -> None:
    table = a_table(lake, RETRACTING[engine])
    for commit in history(["+I", "+U", "-U", "-D"]):
        table.write(arrow_rows(table.schema, commit))
    with expecting(REFUSED_RETRACTS.get((judge.name, engine))):
        assert_reads_alike(judge, table)
