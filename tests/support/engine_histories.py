"""Tables of every engine, and random histories of writes and compactions of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

import keytide as kt
from new_tables import empty_table

COLUMNS = {
    "k": "INT NOT NULL",
    "s": "INT",
    "g": "INT",
    "v": "INT",
    "t": "STRING",
    "a": "ARRAY<INT>",
    "m": "MAP<STRING, INT>",
}
ALL, ADDS = ("+I", "-U", "+U", "-D"), ("+I", "+U")
Row = tuple[Any, ...]

AGGREGATION = {"merge-engine": "aggregation"}
PARTIAL = {"merge-engine": "partial-update"}
FOLDS = {
    "fields.g.aggregate-function": "sum",
    "fields.v.aggregate-function": "last_non_null_value",
    "fields.t.aggregate-function": "last_value",
    "fields.a.aggregate-function": "collect",
    "fields.m.aggregate-function": "merge_map",
}
ADD_FOLDS = {
    "fields.g.aggregate-function": "max",
    "fields.v.aggregate-function": "first_value",
    "fields.t.aggregate-function": "listagg",
    "fields.a.aggregate-function": "union",
    "fields.m.aggregate-function": "merge_map",
}
COMMUTING = {
    "sequence.field": "s",
    "fields.g.aggregate-function": "sum",
    "fields.v.aggregate-function": "last_value",
    "fields.t.aggregate-function": "last_value",
    "fields.a.aggregate-function": "last_value",
    "fields.m.aggregate-function": "last_value",
}
GROUPS = {**PARTIAL, "fields.g.sequence-group": "v,t", "fields.s.sequence-group": "a"}
GROUP_FOLDS = {**GROUPS, "fields.v.aggregate-function": "sum"}
LATE_FOLDS = {**GROUPS, "fields.t.aggregate-function": "listagg"}
ENGINES: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "deduplicate": (ALL, {}),
    "deduplicate by sequence": (ALL, {"sequence.field": "s"}),
    "deduplicate by two, descending": (
        ALL, {"sequence.field": "s,g", "sequence.field.sort-order": "descending"},
    ),
    "deduplicate without deletes": (ALL, {"ignore-delete": "true", "sequence.field": "s"}),
    "watermark": (ADDS, {"watermark.key": "s", "tombstone.key": "t"}),
    "first-row": (ADDS, {"merge-engine": "first-row"}),
    "looked up": (ALL, {"force-lookup": "true"}),
    "late rows looked up": (ALL, {"force-lookup": "true", "sequence.field": "s"}),
    "partial-update": (ADDS, PARTIAL),
    "partial-update without deletes": (ALL, {**PARTIAL, "ignore-delete": "true"}),
    "partial-update removing": (
        ALL, {**PARTIAL, "partial-update.remove-record-on-delete": "true"},
    ),
    "groups": (ALL, GROUPS),
    "sum of a group": (ALL, GROUP_FOLDS),
    "list of a group": (ADDS, LATE_FOLDS),
    "deciding group": (
        ALL, {**GROUPS, "partial-update.remove-record-on-sequence-group": "g"},
    ),
    "sum of a deciding group": (
        ALL, {**GROUP_FOLDS, "partial-update.remove-record-on-sequence-group": "g"},
    ),
    "aggregation": (ALL, {**AGGREGATION, **FOLDS}),
    "aggregation of adds": (ADDS, {**AGGREGATION, **ADD_FOLDS}),
    "aggregation removing": (
        ALL, {**AGGREGATION, **FOLDS, "aggregation.remove-record-on-delete": "true"},
    ),
    "aggregation by sequence": (ALL, {**AGGREGATION, **COMMUTING}),
    "aggregation looked up": (ALL, {**AGGREGATION, **FOLDS, "force-lookup": "true"}),
    "deciding group looked up": (
        ALL,
        {
            **GROUP_FOLDS,
            "partial-update.remove-record-on-sequence-group": "g",
            "force-lookup": "true",
        },
    ),
}  # fmt: skip
APART: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "partial-update": (ADDS, {**PARTIAL, "sequence.field": "s"}),
    "partial-update by two, descending": (
        ADDS, {**PARTIAL, "sequence.field": "s,g", "sequence.field.sort-order": "descending"},
    ),
    "partial-update without deletes": (
        ALL, {**PARTIAL, "sequence.field": "s", "ignore-delete": "true"},
    ),
    "partial-update removing": (
        ALL,
        {**PARTIAL, "sequence.field": "s", "partial-update.remove-record-on-delete": "true"},
    ),
    "groups": (ALL, {**PARTIAL, "sequence.field": "s", "fields.g.sequence-group": "v,t"}),
    "last and first values": (
        ADDS,
        {
            **AGGREGATION,
            "sequence.field": "s",
            "fields.g.aggregate-function": "first_value",
            "fields.v.aggregate-function": "last_non_null_value",
            "fields.t.aggregate-function": "first_non_null_value",
            "fields.a.aggregate-function": "union",
            "fields.m.aggregate-function": "last_value",
        },
    ),
    "sums beside last values": (
        ALL,
        {
            **AGGREGATION,
            "sequence.field": "s",
            "fields.g.aggregate-function": "sum",
            "fields.a.aggregate-function": "last_value",
            "fields.m.aggregate-function": "last_value",
        },
    ),
    "aggregation removing": (
        ("+I", "+U", "-D"),
        {
            **AGGREGATION,
            "sequence.field": "s",
            "aggregation.remove-record-on-delete": "true",
            "fields.t.aggregate-function": "last_value",
        },
    ),
}  # fmt: skip
"""Engines whose versions stay apart."""
SMALL = st.none() | st.integers(0, 3)
VERSIONS = st.tuples(
    st.integers(0, 3),
    SMALL,
    SMALL,
    SMALL,
    st.none() | st.sampled_from("ab"),
    st.none() | st.lists(st.integers(0, 2), max_size=2),
    st.none() | st.dictionaries(st.sampled_from("xy"), st.integers(0, 2), max_size=2),
)


def history(kinds: Sequence[str]) -> st.SearchStrategy[list[Any]]:
    """Writes, and compactions: of how many of the newest runs, or of all."""
    write = st.lists(st.tuples(st.sampled_from(kinds), VERSIONS), min_size=1, max_size=4)
    compaction = st.sampled_from([1, 2, 2, 3, 99])
    # In a short search, many short ones find more than few long ones.
    longest = min(12, 4 + settings().stateful_step_count // 5)
    return st.lists(st.one_of(write, write, compaction), min_size=4, max_size=longest)


def made(options: dict[str, str]) -> kt.Table:
    return empty_table(COLUMNS, ["k"], options={"write-only": "true", **options})


def write(table: kt.Table, versions: Sequence[tuple[str, Row]]) -> None:
    names = (*COLUMNS, "_row_kind")
    rows = [dict(zip(names, (*values, kind), strict=True)) for kind, values in versions]
    table.write(rows)


def row_bags(table: kt.Table | kt.Scan) -> list[str]:
    """Rows as texts, lists taken for bags."""
    scan = table.scan() if isinstance(table, kt.Table) else table
    return as_bags(scan.to_pylist())


def as_bags(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same of any rows."""
    return sorted(
        repr([sorted(v) if isinstance(v, list) else v for v in row.values()]) for row in rows
    )
