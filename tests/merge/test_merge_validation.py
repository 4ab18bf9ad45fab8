"""Merge options that do not go together are refused when a table is defined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from merging import columns_of

from keytide.errors import InvalidError
from keytide.merge.validation import validate_merge_options
from keytide.options import TableOptions

# Judged elsewhere: by the options alone, and by the names of the columns alone.
NOT_ABOUT_MERGING = {"err-bucket-zero", "err-field-name-key-prefix"}

CASES = [
    case
    for case in json.loads((Path(__file__).parents[1] / "data/cases/paimon.json").read_text())
    if case["id"].startswith("err-") and not case["steps"] and case["id"] not in NOT_ABOUT_MERGING
]


def validate(
    columns: str,
    options: dict[str, str],
    primary_keys: tuple[str, ...] = ("k",),
    partition_keys: tuple[str, ...] = (),
) -> None:
    fields = columns_of(columns)
    validate_merge_options(fields, primary_keys, partition_keys, TableOptions.parse(options))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_is_refused_in_its_words(case: dict[str, Any]) -> None:
    ddl = case["ddl"]
    columns = ", ".join(f"`{n}` {t}" for n, t in zip(ddl["columns"], ddl["types"], strict=True))
    with pytest.raises(InvalidError) as caught:
        validate(columns, ddl["options"], tuple(ddl["primary_key"]), tuple(ddl["partition_keys"]))
    assert case["expect_error"] in str(caught.value)


def test_every_definition_case_is_here() -> None:
    assert len(CASES) == 23


PARTIAL = {"merge-engine": "partial-update"}
AGGREGATION = {"merge-engine": "aggregation"}
GROUPED = {**PARTIAL, "fields.g.sequence-group": "a"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sequence.field": "nope"}, "Sequence field: 'nope' can not be found in table schema"),
        ({"sequence.field": "m"}, "'sequence.field' must name columns that have an order"),
        ({"merge-engine": "first-row", "sequence.field": "a"},
         "Do not support use sequence field on FIRST_ROW merge engine"),
        ({"sequence.snapshot-ordering": "true", "sequence.field": "a"}, "mutually exclusive"),
        ({"rowkind.field": "a"}, "only support string type for rowkind"),
        ({"fields.nope.sequence-group": "a"}, "Field nope can not be found in table schema."),
        ({"fields.a,nope.aggregate-function": "sum"}, "Field nope can not be found"),
        ({"fields.r.x.aggregate-function": "sum"},
         "Nested-field path is not supported on ROW field 'r'"),
        ({**PARTIAL, "fields..sequence-group": "a"}, "Invalid sequence-group option"),
        ({**PARTIAL, "fields.g,.sequence-group": "a"}, "Invalid sequence-group option"),
        ({**PARTIAL, "fields.sequence-group": "a"}, "Invalid sequence-group option"),
        ({**PARTIAL, "fields.k.sequence-group": "a"},
         "The sequence-group 'fields.k.sequence-group' contains primary key field 'k'"),
        ({**PARTIAL, "fields.m.sequence-group": "a"}, "must name columns that have an order"),
        ({**GROUPED, "ignore-delete": "true",
          "partial-update.remove-record-on-sequence-group": "g"},
         "ignore-delete and partial-update.remove-record-on-sequence-group have conflicting"),
        ({**GROUPED, "partial-update.remove-record-on-sequence-group": "b"},
         "field 'b' defined in 'partial-update.remove-record-on-sequence-group' option must be "
         "part of sequence groups"),
        ({**GROUPED, "fields.default-aggregate-function": "sum"},
         "Must use sequence group for aggregation functions but not found for field b."),
        ({**GROUPED, "fields.a.aggregate-function": "nope"},
         "Could not find any factory for identifier 'nope'"),
        ({**AGGREGATION, "aggregation.remove-record-on-delete": "true",
          "fields.a.ignore-retract": "true"},
         "aggregation.remove-record-on-delete and fields.a.ignore-retract have conflicting"),
        ({**AGGREGATION, "fields.a.ignore-retract": "yes"}, "'fields.a.ignore-retract'"),
        ({**AGGREGATION, "fields.s.aggregate-function": "sum"}, "type not support"),
        ({**AGGREGATION, "fields.default-aggregate-function": "sum"}, "column 's'"),
        ({"bucket": "2", "bucket-key": "nope"}, "Field nope can not be found in table schema"),
        ({"bucket": "2", "bucket-key": "m"}, "nested type can not in bucket-key"),
        ({"bucket": "2", "bucket-key": "a"}, "should contain all bucket keys"),
        ({"bucket-key": "k"}, "Cannot define 'bucket-key' with bucket = -1"),
        ({"record-level.expire-time": "1 h"}, "You should set time field for record-level expire"),
        ({"record-level.time-field": "s"}, "should be one of INT, BIGINT, or TIMESTAMP"),
        ({"changelog-producer": "full-compaction", "streaming-read-overwrite": "true"},
         "Cannot set streaming-read-overwrite to true"),
    ],
)  # fmt: skip
def test_options_are_refused_with_the_reason(options: dict[str, str], expected: str) -> None:
    columns = "k INT, a INT, b INT, g INT, s STRING, m MAP<INT, INT>, r ROW<x INT>"
    with pytest.raises(InvalidError) as caught:
        validate(columns, options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sequence.snapshot-ordering": "true"}, "requires a primary-key table"),
        ({"streaming-read-overwrite": "true"}, "when the primary keys are not defined"),
    ],
)
def test_options_that_need_a_primary_key_say_so(options: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidError, match=expected):
        validate("k INT, a INT", options, primary_keys=())


def test_bucket_key_of_partition_columns_is_refused() -> None:
    with pytest.raises(InvalidError, match="should not contain partition keys"):
        validate("k INT, d INT", {"bucket": "1", "bucket-key": "d"}, ("k", "d"), ("d",))


def test_count_is_no_function_of_stored_values() -> None:
    with pytest.raises(InvalidError, match=r"'count' \(it is chosen column by column.*'a'"):
        validate("k INT, a INT", {**AGGREGATION, "fields.a.aggregate-function": "count"})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequence.field": "a,s", "sequence.field.sort-order": "descending"},
        {"rowkind.field": "s", "bucket": "4", "bucket-key": "k"},
        {"merge-engine": "first-row", "changelog-producer": "lookup"},
        {"merge-engine": "first-row", "deletion-vectors.enabled": "true",
         "pk-clustering-override": "true"},
        {**PARTIAL, "partial-update.remove-record-on-delete": "true"},
        {**PARTIAL, "fields.default-aggregate-function": "last_non_null_value"},
        {**PARTIAL, "fields.g.sequence-group": "a", "fields.s,b.sequence-group": "m,r",
         "fields.a.aggregate-function": "sum", "fields.m.aggregate-function": "merge_map",
         "partial-update.remove-record-on-sequence-group": "g"},
        {**AGGREGATION, "fields.a.aggregate-function": "sum", "fields.a.ignore-retract": "true"},
        {"deletion-vectors.enabled": "true", "changelog-producer": "lookup"},
        {"sequence.snapshot-ordering": "true", "write-only": "true"},
        {"record-level.expire-time": "1 h", "record-level.time-field": "a"},
        {"fields.a.default-value": "1", "fields.s.stats-mode": "none"},
    ],
)  # fmt: skip
def test_sound_options_pass(options: dict[str, str]) -> None:
    columns = "k INT, a INT, b INT, g INT, s STRING, m MAP<INT, INT>, r ROW<x INT>"
    validate(columns, options)
