"""Tables that compact by lookup: a value on one level contains those on the levels above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from compacting import compact, compact_by_lookup
from keytide.definition.schema_evolution import SetOption
from new_tables import empty_table

LOOKUPS = ({"changelog-producer": "lookup"}, {"force-lookup": "true"})
Version = tuple[str, int, int, Any]
"""Kind, key, sequence, value."""


def new_table(kind: str, options: dict[str, str]) -> kt.Table:
    columns = {"k": "INT NOT NULL", "s": "INT", "v": kind}
    return empty_table(columns, ["k"], options={"write-only": "true", **options})


def write(table: kt.Table, versions: Sequence[Version]) -> None:
    names = ("_row_kind", "k", "s", "v")
    table.write([dict(zip(names, version, strict=True)) for version in versions])


# -- the oracle: what a key's values become, one after the other ----------------------------------


def without_null(fold: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def folded(values: list[Any]) -> Any:
        present = [value for value in values if value is not None]
        return fold(present) if present else None

    return folded


def product(values: list[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


@dataclass(frozen=True)
class Case:
    """Options of a table, values for its column, and how a list makes of them what they become."""

    kind: str
    values: st.SearchStrategy[Any]
    fold: Callable[[list[Any]], Any]
    options: dict[str, str] = field(default_factory=dict)
    kinds: str = "+I"


INTS = st.none() | st.integers(-3, 3)
TEXTS = st.none() | st.sampled_from("abc")
ARRAYS = st.none() | st.lists(st.integers(0, 2), max_size=2)
MAPS = st.none() | st.dictionaries(st.sampled_from("xy"), st.integers(0, 3), max_size=2)
BOOLEANS = st.sampled_from([None, True, False])


def aggregated(function: str, kind: str, values: Any, fold: Any, **options: str) -> Case:
    own = {"merge-engine": "aggregation", "fields.v.aggregate-function": function}
    return Case(kind, values, without_null(fold), own | options)


CASES = {
    "deduplicate": Case("INT", INTS, lambda values: values[-1]),
    "first-row": Case("INT", INTS, lambda values: values[0], {"merge-engine": "first-row"}),
    "partial-update": Case(
        "INT", INTS, without_null(lambda v: v[-1]), {"merge-engine": "partial-update"}
    ),
    "sum of a group": Case(
        "INT",
        INTS,
        without_null(sum),
        {
            "merge-engine": "partial-update",
            "fields.s.sequence-group": "v",
            "fields.v.aggregate-function": "sum",
        },
    ),
    "sum": aggregated("sum", "INT", INTS, sum),
    "sum by sequence": aggregated("sum", "BIGINT", INTS, sum, **{"sequence.field": "s"}),
    "product": aggregated("product", "BIGINT", INTS, product),
    "max": aggregated("max", "INT", INTS, max),
    "min": aggregated("min", "INT", INTS, min),
    "bool_and": aggregated("bool_and", "BOOLEAN", BOOLEANS, all),
    "bool_or": aggregated("bool_or", "BOOLEAN", BOOLEANS, any),
    "last_non_null_value": aggregated("last_non_null_value", "INT", INTS, lambda v: v[-1]),
    "first_non_null_value": aggregated("first_non_null_value", "INT", INTS, lambda v: v[0]),
    "listagg": aggregated("listagg", "STRING", TEXTS, ",".join),
    "collect": aggregated("collect", "ARRAY<INT>", ARRAYS, lambda v: list(chain(*v))),
    "union": aggregated(
        "union", "ARRAY<INT>", ARRAYS, lambda v: sorted(set(chain(*v))) if len(v) > 1 else v[0]
    ),
    "merge_map": aggregated(
        "merge_map", "MAP<STRING, INT>", MAPS, lambda v: {k: x for one in v for k, x in one.items()}
    ),
}


def history(case: Case) -> st.SearchStrategy[list[Any]]:
    """Writes of some versions, most of them compacted then to a level, often a low one."""
    versions = st.lists(st.tuples(st.integers(0, 1), case.values), min_size=1, max_size=3)
    return st.lists(
        st.tuples(versions, st.sampled_from([5, 3, 2, 1, 1, 0])), min_size=4, max_size=7
    )


def comparable(value: Any) -> Any:
    """Lists and maps without their order."""
    if isinstance(value, dict):
        return sorted(value.items())
    return sorted(value) if isinstance(value, list) else value


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=max(2, settings().max_examples // 6))
@given(lookup=st.sampled_from(LOOKUPS), data=st.data())
def test_values_count_once_wherever_compactions_left_them(
    name: str, lookup: dict[str, str], data: st.DataObject
) -> None:
    case = CASES[name]
    table = new_table(case.kind, {**case.options, **lookup})
    arrived: dict[int, list[Any]] = {}
    for number, (versions, level) in enumerate(data.draw(history(case))):
        write(table, [("+I", key, number, value) for key, value in versions])
        for key, value in versions:
            arrived.setdefault(key, []).append(value)
        if level:
            compact_by_lookup(table, level)
    expected = {key: comparable(case.fold(values)) for key, values in arrived.items()}
    found = {row["k"]: comparable(row["v"]) for row in table.scan().to_pylist()}
    assert found == expected
    key = data.draw(st.sampled_from(sorted(expected)))
    assert table.why(key).row == table.get(key) is not None


def levels(table: kt.Table) -> dict[int, int]:
    """The rows on each level."""
    files = table.scan().live.entries
    return {entry.file.level: entry.file.row_count for entry in files}


def nested_sums(**options: str) -> kt.Table:
    """A sum of 11 on level 1, of which 1 is on level 5 too."""
    table = new_table("INT", CASES["sum"].options | {"changelog-producer": "lookup"} | options)
    write(table, [("+I", 1, 5, 1), ("+I", 2, 5, 1)])
    compact_by_lookup(table, 5)
    write(table, [("+I", 1, 7, 10)])
    compact_by_lookup(table, 1)
    assert levels(table) == {1: 1, 5: 2}
    return table


def test_every_reader_counts_a_nested_sum_once() -> None:
    table = nested_sums()
    assert table.get(1) == {"k": 1, "s": 7, "v": 11}
    assert table.scan(where="k = 1").to_pylist() == [{"k": 1, "s": 7, "v": 11}]
    assert table.scan(columns=["v"], where="v = 11").to_pylist() == [{"v": 11}]
    assert table.scan(where="v = 12 OR v = 10").count() == 0
    write(table, [("+I", 1, 8, 100)])
    assert table.get(1) == {"k": 1, "s": 8, "v": 111}
    assert table.get(2) == {"k": 2, "s": 5, "v": 1}


def test_why_names_the_version_that_contains_another() -> None:
    table = nested_sums()
    write(table, [("+I", 1, 8, 100)])
    why = table.why(1)
    told = [(row["level"], row["v"], row["outcome"]) for row in why.to_arrow().to_pylist()]
    later = "replaced by version 3: it arrived later (_SEQUENCE_NUMBER 1 < 2)"
    assert told == [
        (5, 1, "not counted again: the version on level 1 contains it"),
        (1, 11, f"adds 11 to v; s {later}"),
        (0, 100, "sets s; adds 100 to v"),
    ]
    assert why.taken == {"s": (3,), "v": (2, 3)}


def test_late_rows_are_told_from_the_version_that_counts() -> None:
    table = nested_sums(**{"sequence.field": "s", "write.count-out-of-order": "true"})
    late = [{"k": 1, "s": 6, "v": 1}, {"k": 2, "s": 6, "v": 1}]
    assert table.write(late).out_of_order == 1
    assert table.scan().to_pylist() == [{"k": 1, "s": 7, "v": 12}, {"k": 2, "s": 6, "v": 2}]


def test_without_lookup_every_level_counts() -> None:
    table = new_table("INT", CASES["sum"].options)
    for number, level in [(1, 5), (10, 3), (100, 1)]:
        write(table, [("+I", 1, 5, number)])
        compact(table, level)
    assert levels(table) == {1: 1, 3: 1, 5: 1}
    assert table.get(1) == {"k": 1, "s": 5, "v": 111}


@pytest.mark.parametrize("engine", ["aggregation", "partial-update"])
@pytest.mark.parametrize(("before", "after"), [("none", "lookup"), ("lookup", "input")])
def test_which_levels_count_cannot_change_under_stored_rows(
    engine: str, before: str, after: str
) -> None:
    table = new_table("INT", {"merge-engine": engine, "changelog-producer": before})
    table.alter(SetOption("changelog-producer", before))
    write(table, [("+I", 1, 5, 1)])
    with pytest.raises(kt.InvalidError, match=r"'changelog-producer'.*write the rows to a new"):
        table.alter(SetOption("changelog-producer", after))
