"""The laws of the engines: how a key's versions reach a merge does not change its row."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merging import Merging

# The laws of the functions are many: each takes a share of the examples.
SHARE = settings(max_examples=max(6, settings().max_examples // 4))

KEYS = st.integers(0, 2)
LENGTHS = st.lists(st.integers(1, 4), max_size=5)
SMALL = st.one_of(st.none(), st.integers(-3, 3))
TEXT = st.one_of(st.none(), st.sampled_from(["", " ", "a", "b", "a,b", "b,,c", "c,c"]))
NESTED = st.tuples(st.sampled_from([None, 0, 1]), st.one_of(st.none(), st.integers(0, 2)), SMALL)


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.lists(items, max_size=3))


def maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.dictionaries(st.sampled_from("xyz"), values, max_size=3))


def members(kind: str) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.lists(st.integers(0, 9)).map(lambda of: {kind: of}))


@dataclass(frozen=True)
class Function:
    """A function, a column for it, and the laws that it promises."""

    name: str
    type: str
    values: st.SearchStrategy[Any]
    options: dict[str, str] = field(default_factory=dict)
    can_retract: bool = False
    splits_anywhere: bool = True
    splits_retracts_anywhere: bool = False
    ignores_order: bool = False

    def __str__(self) -> str:
        return "-".join([self.name, self.type.split("<")[0], *self.options])

    def merging(self, **options: str) -> Merging:
        own = {f"fields.v.{key}": value for key, value in self.options.items()}
        function = {"fields.v.aggregate-function": self.name}
        if "sequence.field" not in options:  # a function that always splits, so that v is judged
            function["fields.s.aggregate-function"] = "last_value"
        return Merging.of(
            f"k INT NOT NULL, s INT, v {self.type}",
            {"merge-engine": "aggregation", **function, **own, **options},
        )


ROW = "ARRAY<ROW<n INT, s INT, x INT>>"
TIMED = "MAP<STRING, ROW<x INT, t STRING>>"
TIMED_VALUES = maps(
    st.one_of(st.none(), st.tuples(SMALL, st.one_of(st.none(), st.sampled_from("123"))))
)
FUNCTIONS = [
    *(
        Function("sum", type_, values, {}, True, True, True, True)
        for type_, values in [
            ("TINYINT", SMALL),
            ("INT", SMALL),
            ("BIGINT", st.one_of(st.none(), st.integers(-(2**58), 2**58))),
            ("DECIMAL(38, 2)", st.one_of(st.none(), st.decimals(-100, 100, places=2))),
            ("DOUBLE", SMALL),
        ]
    ),
    Function("product", "BIGINT", SMALL, ignores_order=True),
    Function("product", "INT", st.one_of(st.none(), st.sampled_from([-2, 1, 2])), {}, True),
    Function("product", "DOUBLE", SMALL, ignores_order=True),
    *(
        Function(name, type_, values, ignores_order=True)
        for name in ("max", "min")
        for type_, values in [
            ("INT", SMALL),
            ("DOUBLE", st.one_of(SMALL, st.just(float("nan")))),
            ("STRING", TEXT),
            ("BOOLEAN", st.sampled_from([None, True, False])),
            ("BYTES", st.sampled_from([None, "", "00", "7f", "80", "ff"])),
            ("DATE", st.sampled_from([None, "1969-12-31", "2024-02-29"])),
            ("TIME", st.sampled_from([None, "00:00:01", "23:59:59.999"])),
            ("TIMESTAMP(9)", st.sampled_from([None, "1969-12-31 00:00:00.000000001"])),
            ("DECIMAL(5, 2)", st.one_of(st.none(), st.decimals(-9, 9, places=2))),
        ]
    ),
    Function("bool_and", "BOOLEAN", st.sampled_from([None, True, False]), ignores_order=True),
    Function("bool_or", "BOOLEAN", st.sampled_from([None, True, False]), ignores_order=True),
    Function("last_value", "INT", SMALL, {}, True, True, True),
    Function("last_value", "ARRAY<INT>", lists(SMALL), {}, True, True, True),
    Function("last_non_null_value", "INT", SMALL, {}, True),
    Function("last_non_null_value", "MAP<STRING, INT>", maps(SMALL), {}, True),
    Function("first_value", "STRING", TEXT),
    Function("first_non_null_value", "STRING", TEXT),
    Function("first_not_null_value", "ROW<a INT, b STRING>", st.one_of(
        st.none(), st.tuples(SMALL, TEXT))),
    Function("listagg", "STRING", TEXT),
    Function("listagg", "STRING", TEXT, {"distinct": "true"}),
    Function("listagg", "STRING", TEXT, {"list-agg-delimiter": "--"}),
    Function("collect", "ARRAY<INT>", lists(SMALL), {}, True, ignores_order=True),
    Function("collect", "ARRAY<INT>", lists(SMALL), {"distinct": "true"}, True),
    Function("collect", "ARRAY<ROW<a INT, b ARRAY<INT>>>",
             lists(st.one_of(st.none(), st.tuples(SMALL, lists(SMALL)))), {}, True),
    Function("merge_map", "MAP<STRING, INT>", maps(SMALL), {}, True),
    Function("merge_map_with_keytime", TIMED, TIMED_VALUES, splits_anywhere=False),
    Function("merge_map_with_keytime", TIMED, TIMED_VALUES, {"ts-field": "x"},
             splits_anywhere=False),
    Function("nested_update", ROW, lists(st.one_of(st.none(), NESTED)), {}, True),
    Function("nested_update", ROW, lists(NESTED), {"nested-key": "n"}, True),
    Function("nested_update", ROW, lists(NESTED), {"nested-key": "n,x"}, True),
    Function("nested_update", ROW, lists(NESTED),
             {"nested-key": "n", "nested-sequence-field": "s,x"}, True),
    Function("nested_update", ROW, lists(NESTED),
             {"nested-key": "n", "nested-key-null-strategy": "ignore"}, True),
    Function("nested_update", ROW, lists(NESTED), {"count-limit": "3"}),
    Function("nested_update", ROW, lists(NESTED), {"nested-key": "x", "count-limit": "2"},
             splits_anywhere=False),
    Function("nested_partial_update", ROW, lists(NESTED), {"nested-key": "n"}),
    Function("union", "ARRAY<INT>", lists(SMALL), ignores_order=True),
    Function("union", "ARRAY<STRING>", lists(TEXT)),
    Function("hll_sketch", "BYTES", members("$hll"), ignores_order=True),
    Function("theta_sketch", "BYTES", members("$theta"), ignores_order=True),
    Function("rbm32", "BYTES", members("$rbm32"), ignores_order=True),
    Function("rbm64", "BYTES", members("$rbm64"), ignores_order=True),
]  # fmt: skip


def rows_of(values: st.SearchStrategy[Any], kinds: str = "I") -> st.SearchStrategy[list[Any]]:
    """Rows of key, sequence and value; a letter per kind that may occur."""
    names = {"I": "+I", "A": "+U", "B": "-U", "D": "-D"}
    row = st.tuples(st.sampled_from([names[kind] for kind in kinds]), KEYS, SMALL, values)
    return st.lists(row, max_size=10)


def chosen(**laws: bool) -> Any:
    functions = [f for f in FUNCTIONS if all(getattr(f, law) == is_ for law, is_ in laws.items())]
    return pytest.mark.parametrize("function", functions, ids=str)


# -- aggregation: one law a function ---------------------------------------------------------------


@chosen(splits_anywhere=True)
@SHARE
@given(data=st.data(), lengths=LENGTHS)
def test_adds_merged_run_by_run_give_the_same_row(
    function: Function, data: st.DataObject, lengths: list[int]
) -> None:
    rows, merging = data.draw(rows_of(function.values, "IA")), function.merging()
    at_once = merging.at_once(rows)
    assert merging.visible(merging.run_by_run(rows, lengths)) == merging.visible(at_once)


@chosen()
@SHARE
@given(data=st.data())
def test_adds_merged_from_the_oldest_give_the_same_row(
    function: Function, data: st.DataObject
) -> None:
    rows, merging = data.draw(rows_of(function.values, "IA")), function.merging()
    at_once = merging.at_once(rows)
    assert merging.visible(merging.from_the_oldest(rows)) == merging.visible(at_once)


@chosen(can_retract=True)
@SHARE
@given(data=st.data())
def test_retracts_merged_from_the_oldest_give_the_same_row(
    function: Function, data: st.DataObject
) -> None:
    rows, merging = data.draw(rows_of(function.values, "IABD")), function.merging()
    at_once = merging.at_once(rows)
    assert merging.visible(merging.from_the_oldest(rows)) == merging.visible(at_once)


@chosen(splits_retracts_anywhere=True)
@SHARE
@given(data=st.data(), lengths=LENGTHS)
def test_retracts_merged_run_by_run_give_the_same_row(
    function: Function, data: st.DataObject, lengths: list[int]
) -> None:
    rows, merging = data.draw(rows_of(function.values, "IABD")), function.merging()
    at_once = merging.at_once(rows)
    assert merging.visible(merging.run_by_run(rows, lengths)) == merging.visible(at_once)


@chosen(ignores_order=True)
@SHARE
@given(data=st.data(), lengths=LENGTHS)
def test_functions_that_ignore_order_do_so_run_by_run(
    function: Function, data: st.DataObject, lengths: list[int]
) -> None:
    rows = data.draw(rows_of(function.values, "IA"))
    shuffled = data.draw(st.permutations(rows))
    merging = function.merging(**{"sequence.field": "s"})
    at_once = [(row[0], row[2]) for row in merging.visible(merging.at_once(rows))]
    merged = merging.visible(merging.run_by_run(shuffled, lengths))
    assert [(row[0], row[2]) for row in merged] == at_once


@chosen()
@SHARE
@given(data=st.data())
def test_sequence_field_makes_arrival_irrelevant(function: Function, data: st.DataObject) -> None:
    rows = distinct(data.draw(rows_of(function.values, "IA")), key=lambda row: row[1:3])
    merging = function.merging(**{"sequence.field": "s"})
    shuffled = data.draw(st.permutations(rows))
    at_once = merging.visible(merging.at_once(rows))
    assert merging.visible(merging.at_once(shuffled)) == at_once


@chosen(can_retract=True)
@SHARE
@given(data=st.data())
def test_removed_record_is_gone_from_what_follows(function: Function, data: st.DataObject) -> None:
    merging = function.merging(**{"aggregation.remove-record-on-delete": "true"})
    before = data.draw(rows_of(function.values, "IABD"))
    after = data.draw(rows_of(function.values, "IA"))
    delete = [("-D", key, None, data.draw(function.values)) for key in range(3)]
    rows = [*before, *delete, *after]
    assert merging.visible(merging.at_once(rows)) == merging.visible(merging.at_once(after))
    merged = merging.visible(merging.from_the_oldest(rows))
    assert merged == merging.visible(merging.from_the_oldest(after))


# -- engines that pick -----------------------------------------------------------------------------

WIDE = "k INT NOT NULL, s INT, a INT, b STRING"
PLAIN_ROWS = st.lists(st.tuples(st.sampled_from(["+I", "+U"]), KEYS, SMALL, SMALL, TEXT))
ANY_ROWS = st.lists(
    st.tuples(st.sampled_from(["+I", "+U", "-U", "-D"]), KEYS, SMALL, SMALL, TEXT), max_size=10
)
PICKING = {
    "deduplicate": {},
    "deduplicate-descending": {"sequence.field": "s", "sequence.field.sort-order": "descending"},
    "deduplicate-ignore-delete": {"ignore-delete": "true"},
    "first-row": {"merge-engine": "first-row", "ignore-delete": "true"},
    "partial-update": {"merge-engine": "partial-update", "ignore-delete": "true"},
}


@pytest.mark.parametrize("options", PICKING.values(), ids=PICKING)
@given(rows=ANY_ROWS, lengths=LENGTHS)
def test_engines_merge_run_by_run(
    options: dict[str, str], rows: list[Any], lengths: list[int]
) -> None:
    merging = Merging.of(WIDE, options)
    at_once = merging.at_once(rows)
    assert merging.visible(merging.run_by_run(rows, lengths)) == merging.visible(at_once)


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update"])
@given(rows=ANY_ROWS, data=st.data())
def test_sequence_field_makes_arrival_irrelevant_to_the_engine(
    engine: str, rows: list[Any], data: st.DataObject
) -> None:
    options = {"merge-engine": engine, "sequence.field": "s"}
    if engine == "partial-update":
        options["partial-update.remove-record-on-delete"] = "true"
    merging = Merging.of(WIDE, options)
    rows = distinct(rows, key=lambda row: row[1:3])
    at_once = merging.visible(merging.at_once(rows))
    assert merging.visible(merging.at_once(data.draw(st.permutations(rows)))) == at_once


@given(rows=ANY_ROWS)
def test_deduplicate_agrees_with_a_dict(rows: list[Any]) -> None:
    merging, oracle = Merging.of(WIDE, {}), {}
    for row in rows:
        oracle[row[1]] = row
    assert merging.rows(merging.at_once(rows)) == [oracle[key] for key in sorted(oracle)]


@given(rows=PLAIN_ROWS)
def test_partial_update_agrees_with_a_dict(rows: list[Any]) -> None:
    merging = Merging.of(WIDE, {"merge-engine": "partial-update"})
    oracle: dict[int, list[Any]] = {}
    for _, *values in rows:
        old = oracle.get(values[0], [None] * 4)
        oracle[values[0]] = [o if n is None else n for o, n in zip(old, values, strict=True)]
    assert merging.visible(merging.at_once(rows)) == [tuple(oracle[k]) for k in sorted(oracle)]


@given(rows=ANY_ROWS)
def test_removing_delete_wipes_the_row_from_the_oldest_on(rows: list[Any]) -> None:
    merging = Merging.of(
        WIDE,
        {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
    )
    oracle: dict[int, list[Any]] = {}
    for kind, *values in rows:
        if kind == "-D":
            oracle.pop(values[0], None)
        elif kind != "-U":
            old = oracle.get(values[0], [None] * 4)
            oracle[values[0]] = [o if n is None else n for o, n in zip(old, values, strict=True)]
    expected = [tuple(oracle[key]) for key in sorted(oracle)]
    assert merging.visible(merging.at_once(rows)) == expected
    assert merging.visible(merging.from_the_oldest(rows)) == expected


# -- sequence groups -------------------------------------------------------------------------------

GROUPED = "k INT NOT NULL, a INT, b STRING, g INT, c INT, h1 INT, h2 STRING, free INT"
GROUPS = {
    "merge-engine": "partial-update",
    "fields.g.sequence-group": "a,b",
    "fields.h1,h2.sequence-group": "c",
}
DECIDING = {**GROUPS, "partial-update.remove-record-on-sequence-group": "g"}
BOTH_DECIDING = {**GROUPS, "partial-update.remove-record-on-sequence-group": "g,h2"}
LETTERS = st.one_of(st.none(), st.sampled_from(string.ascii_lowercase[:3]))


def grouped_rows(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Any]]:
    row = st.tuples(
        st.sampled_from(kinds), KEYS, SMALL, LETTERS, SMALL, SMALL, SMALL, LETTERS, SMALL
    )
    return st.lists(row, max_size=10)


ADDS, ANY_KIND = ("+I", "+U"), ("+I", "+U", "-U", "-D")


@given(rows=grouped_rows(ANY_KIND), lengths=LENGTHS)
def test_groups_merge_run_by_run(rows: list[Any], lengths: list[int]) -> None:
    merging = Merging.of(GROUPED, GROUPS)
    at_once = merging.at_once(rows)
    assert merging.visible(merging.run_by_run(rows, lengths)) == merging.visible(at_once)


@given(rows=grouped_rows(ANY_KIND), lengths=LENGTHS, data=st.data())
def test_arrival_is_irrelevant_to_groups(
    rows: list[Any], lengths: list[int], data: st.DataObject
) -> None:
    merging = Merging.of(GROUPED, GROUPS)
    rows = distinct(rows, key=lambda row: (row[1], row[4]))
    rows = distinct(rows, key=lambda row: (row[1], row[6:8]))
    shuffled = data.draw(st.permutations(rows))
    at_once = [row[:-1] for row in merging.visible(merging.at_once(rows))]
    merged = [row[:-1] for row in merging.visible(merging.run_by_run(shuffled, lengths))]
    assert merged == at_once


@pytest.mark.parametrize("options", [DECIDING, BOTH_DECIDING], ids=["one", "both"])
@given(rows=grouped_rows(ANY_KIND))
def test_deciding_groups_merge_from_the_oldest(options: dict[str, str], rows: list[Any]) -> None:
    merging = Merging.of(GROUPED, options)
    at_once = merging.at_once(rows)
    assert merging.visible(merging.from_the_oldest(rows)) == merging.visible(at_once)


@given(rows=grouped_rows(("+I", "+U", "-D")), data=st.data())
def test_arrival_is_irrelevant_to_a_deciding_group(rows: list[Any], data: st.DataObject) -> None:
    merging = Merging.of(GROUPED, DECIDING)
    rows = distinct(rows, key=lambda row: (row[1], row[4]))
    rows = [row for row in rows if row[4] is not None]
    shuffled = data.draw(st.permutations(rows))
    at_once = [row[:4] for row in merging.visible(merging.at_once(rows))]
    assert [row[:4] for row in merging.visible(merging.from_the_oldest(shuffled))] == at_once


FOLDS = {
    "sum": ("IABD", SMALL, "INT"),
    "max": ("IA", SMALL, "INT"),
    "last_value": ("IABD", SMALL, "INT"),
    "last_non_null_value": ("IABD", SMALL, "INT"),
    "first_value": ("IA", SMALL, "INT"),
    "first_non_null_value": ("IA", SMALL, "INT"),
    "listagg": ("IA", TEXT, "STRING"),
    "collect": ("IABD", lists(SMALL), "ARRAY<INT>"),
    "merge_map": ("IABD", maps(SMALL), "MAP<STRING, INT>"),
    "nested_update": ("IABD", lists(NESTED), ROW),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("removing", [False, True], ids=["plain", "deciding"])
@SHARE
@given(data=st.data())
def test_functions_in_groups_merge_from_the_oldest(
    name: str, removing: bool, data: st.DataObject
) -> None:
    kinds, values, type_ = FOLDS[name]
    options = {
        "merge-engine": "partial-update",
        "fields.s.sequence-group": "v",
        "fields.v.aggregate-function": name,
        "fields.v.nested-key": "n",
    }
    if removing:
        options["partial-update.remove-record-on-sequence-group"] = "s"
    merging = Merging.of(f"k INT NOT NULL, s INT, v {type_}", options)
    rows = data.draw(rows_of(values, kinds))
    at_once = merging.at_once(rows)
    assert merging.visible(merging.from_the_oldest(rows)) == merging.visible(at_once)


def distinct(rows: list[Any], key: Any) -> list[Any]:
    return list({key(row): row for row in rows}.values())
