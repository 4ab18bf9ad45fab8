"""What an engine does not refuse can be merged, with whatever else it did not refuse."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
from merging import Merging, Row

from keytide.errors import InvalidError
from keytide.merge.functions import registry
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import SEQUENCE_NUMBER
from keytide.merge.refusal import reasons
from keytide.types import AtomicType

KINDS = ["+I", "-U", "+U", "-D"]
ROWS = "ARRAY<ROW<n INT, x INT>>"
TIMED = "MAP<STRING, ROW<x INT, t STRING>>"
GARBAGE = "0badc0de"
USERS = {
    "either": MergeFunction("either", lambda v: v.first(), (AtomicType("INT"),)),
    "total": MergeFunction("total", lambda v: v.sum(), (AtomicType("INT"),), lambda a, t: a - t),
}


@dataclass(frozen=True)
class Function:
    """A function, a column for it, and values: sound ones, and those that it cannot fold."""

    name: str
    type: str
    sound: tuple[Any, ...]
    unsound: tuple[Any, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name, self.type.split("<")[0], *(v for _, v in self.options)])


KEYED = ("nested-key", "n")
FUNCTIONS = [
    Function("sum", "INT", (1, -2)),
    Function("sum", "DECIMAL(5, 2)", ("1.50", "-2.00")),
    Function("product", "INT", (2, 0)),
    Function("product", "DOUBLE", (2.5, 0.0)),
    Function("product", "DECIMAL(5, 2)", ("1.50", "0.00")),
    Function("max", "DOUBLE", (1.0, float("nan"))),
    Function("min", "STRING", ("", "b")),
    Function("bool_and", "BOOLEAN", (True, False)),
    Function("bool_or", "BOOLEAN", (True, False)),
    Function("last_value", "INT", (1, 2)),
    Function("last_non_null_value", "MAP<STRING, INT>", ({}, {"a": None})),
    Function("first_value", "INT", (1, 2)),
    Function("first_non_null_value", "ARRAY<INT>", ([], [None])),
    Function("first_not_null_value", "INT", (1, 2)),
    Function("listagg", "STRING", ("a", "", " ")),
    Function("listagg", "STRING", ("a", "", ","), options=(("distinct", "true"),)),
    Function("collect", "ARRAY<INT>", ([], [1, None, 1])),
    Function("collect", "ARRAY<INT>", ([], [1, None, 1]), options=(("distinct", "true"),)),
    Function("union", "ARRAY<INT>", ([], [1, None, 1])),
    Function("merge_map", "MAP<STRING, INT>", ({}, {"a": 1, "b": None})),
    Function("merge_map_with_keytime", TIMED, ({"a": [1, "1"], "b": None}, {"a": [1, None]})),
    Function("nested_update", ROWS, ([], [None], [[None, 1], [1, 1]])),
    Function("nested_update", ROWS, ([None], [[None, 1], [1, 1]]), options=(KEYED,)),
    Function("nested_update", ROWS, ([None], [[1, 1], [1, None]]), ([[1, 1], [None, 1]],),
             (KEYED, ("nested-key-null-strategy", "error"))),
    Function("nested_update", ROWS, ([None], [[1, 1], [2, None]]), (),
             (KEYED, ("count-limit", "1"))),
    Function("nested_partial_update", ROWS, ([None], [[None, 1]]), options=(KEYED,)),
    Function("nested_partial_update", ROWS, ([None], [[1, None]]), ([[None, 1]],),
             (KEYED, ("nested-key-null-strategy", "error"))),
    Function("rbm32", "BYTES", ({"$rbm32": [1]}, {"$rbm32": []}), (GARBAGE, "")),
    Function("rbm64", "BYTES", ({"$rbm64": [1]}, {"$rbm64": []}), (GARBAGE, "")),
    Function("hll_sketch", "BYTES", ({"$hll": [1]},), (GARBAGE, "")),
    Function("theta_sketch", "BYTES", ({"$theta": [1]},), (GARBAGE, "")),
    Function("either", "INT", (1, 2)),
    Function("total", "INT", (1, 2)),
]  # fmt: skip

AGGREGATION: Mapping[str, str] = {"merge-engine": "aggregation"}
GROUPED = {
    "merge-engine": "partial-update",
    "fields.g.sequence-group": "v",
    "fields.h.sequence-group": "w",
}
REMOVING = "partial-update.remove-record-on-sequence-group"
ENGINES: list[Mapping[str, str]] = [
    AGGREGATION,
    {**AGGREGATION, "fields.v.ignore-retract": "true"},
    {**AGGREGATION, "aggregation.remove-record-on-delete": "true"},
    GROUPED,
    {**GROUPED, "fields.v.ignore-retract": "true"},
    {**GROUPED, "ignore-delete": "true"},
    {**GROUPED, REMOVING: "g"},
    {**GROUPED, REMOVING: "h"},
    {**GROUPED, REMOVING: "g", "fields.v.ignore-retract": "true"},
]
WHOLE_ROWS: list[Mapping[str, str]] = [
    {"merge-engine": engine, **option}
    for engine in ("deduplicate", "first-row", "partial-update")
    for option in ({}, {"ignore-delete": "true"})
] + [{"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}]


def every_row(values: tuple[Any, ...], types: str, options: Mapping[str, str]) -> list[Row]:
    """One row of each kind for each value, with each place in the groups."""
    is_grouped = "fields.g.sequence-group" in options
    places = [(g, h) for g in (None, 1, 2) for h in (None, 1)] if is_grouped else [(1, 1)]
    nones = () if "NOT NULL" in types else (None,)
    return [
        (kind, 0, g, value, h, 7)
        for kind, (g, h), value in product(KINDS, places, (*values, *nones))
    ]


def histories(merging: Merging, rows: list[Row]) -> pl.DataFrame:
    """Pairs of the rows and longer histories, each as the versions of a key."""
    chance = random.Random(1)
    places = range(len(rows))
    pairs = list(product(places, repeat=2))
    longer = [tuple(chance.choices(places, k=chance.randint(3, 5))) for _ in range(60 * bool(rows))]
    every = [*chance.sample(pairs, min(len(pairs), 140)), *longer]
    keys = [key for key, run in enumerate(every) for _ in run]
    made = merging.versions(rows)[[place for run in every for place in run]]
    return made.with_columns(
        pl.Series("k", keys, made.schema["k"]),
        pl.int_range(pl.len(), dtype=pl.Int64).alias(SEQUENCE_NUMBER),
    )


def judged(merging: Merging, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows that are not refused, and those that are."""
    frame = merging.versions(rows)
    found = reasons(list(merging.engine.refusals(frame)), frame.height).is_null().to_list()
    return (
        [row for row, is_fine in zip(rows, found, strict=True) if is_fine],
        [row for row, is_fine in zip(rows, found, strict=True) if not is_fine],
    )


def check(columns: str, options: Mapping[str, str], rows: list[Row]) -> list[Row]:
    """Merge all that is accepted, at once and in two steps; returns what was refused."""
    merging = Merging.of(columns, options, functions=USERS)
    accepted, refused = judged(merging, rows)
    versions = histories(merging, accepted)
    merging.merge(versions)
    is_early = pl.Series(np.arange(versions.height) % 3 > 0)
    merging.merge(pl.concat([merging.merge(versions.filter(is_early)), versions]))
    return refused


@pytest.mark.one_in(14)
@pytest.mark.parametrize("not_null", ["", " NOT NULL"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_whatever_a_function_accepts_can_be_merged(function: Function, not_null: str) -> None:
    for engine in ENGINES:
        own = {f"fields.v.{key}": value for key, value in function.options}
        options = {**engine, "fields.v.aggregate-function": function.name, **own}
        if len({"aggregation.remove-record-on-delete", "fields.v.ignore-retract"} & {*options}) > 1:
            continue
        types = f"{function.type}{not_null}"
        other = f"INT{not_null}" if "fields.h.sequence-group" in engine else "INT"
        columns = f"k INT NOT NULL, g INT, v {types}, h INT, w {other}"
        check(columns, options, every_row((*function.sound, *function.unsound), types, options))


@pytest.mark.parametrize("options", WHOLE_ROWS, ids=lambda options: "-".join(options.values()))
def test_whatever_an_engine_accepts_can_be_merged(options: Mapping[str, str]) -> None:
    columns = "k INT NOT NULL, g INT, v INT, h INT, w INT"
    refused = check(columns, options, every_row((1, 2), "INT", options))
    takes_retracts = len(options) > 1 or options["merge-engine"] == "deduplicate"
    assert {row[0] for row in refused} == (set() if takes_retracts else {"-U", "-D"})


def test_every_function_is_walked() -> None:
    assert {function.name for function in FUNCTIONS} == {*registry._FUNCTIONS, *USERS}


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.unsound], ids=str)
def test_unsound_values_are_refused_and_sound_ones_are_not(function: Function) -> None:
    own = {f"fields.v.{key}": value for key, value in function.options}
    options = {**AGGREGATION, "fields.v.aggregate-function": function.name, **own}
    merging = Merging.of(f"k INT NOT NULL, v {function.type}", options)
    accepted, refused = judged(
        merging, [("+I", 0, v) for v in (*function.sound, None, *function.unsound)]
    )
    assert [row[2] for row in refused] == list(function.unsound)
    for row in refused:
        with pytest.raises(InvalidError, match="column 'v'"):
            merging.at_once([accepted[0], row])
