"""Merge options that do not go together are refused when a table is defined."""

from __future__ import annotations

import json
import re
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
REFUSALS = json.loads((Path(__file__).parent / "refusals.json").read_text())
"""What is said of each case, word for word."""


def validate(
    columns: str,
    options: dict[str, str],
    primary_keys: tuple[str, ...] = ("k",),
    partition_keys: tuple[str, ...] = (),
) -> None:
    fields = columns_of(columns)
    validate_merge_options(fields, primary_keys, partition_keys, TableOptions.parse(options))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_is_refused_for_what_it_names(case: dict[str, Any]) -> None:
    ddl = case["ddl"]
    columns = ", ".join(f"`{n}` {t}" for n, t in zip(ddl["columns"], ddl["types"], strict=True))
    with pytest.raises(InvalidError) as caught:
        validate(columns, ddl["options"], tuple(ddl["primary_key"]), tuple(ddl["partition_keys"]))
    quoted = re.findall(r"'([^' =]+)'", case["expect_error"])
    words = re.findall(r"[\w.-]*\w", case["expect_error"])
    named = {*quoted, *(word for word in words if word in {*ddl["columns"], *ddl["options"]})}
    assert named <= {*re.findall(r"[\w.-]*\w", str(caught.value))}
    assert str(caught.value) == REFUSALS[case["id"]]


def test_every_definition_case_is_here() -> None:
    assert len(CASES) == 23


PARTIAL = {"merge-engine": "partial-update"}
AGGREGATION = {"merge-engine": "aggregation"}
GROUPED = {**PARTIAL, "fields.g.sequence-group": "a"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sequence.field": "nope"},
         "'sequence.field' names the column 'nope', which does not exist"),
        ({"sequence.field": "m"}, "'sequence.field' must name columns that have an order"),
        ({"merge-engine": "first-row", "sequence.field": "a"},
         "first-row does not use sequence fields. Remove 'sequence.field'"),
        ({"sequence.snapshot-ordering": "true", "sequence.field": "a"},
         "both define which version is newer"),
        ({"rowkind.field": "a"}, "'rowkind.field' names the column 'a' of type INT"),
        ({"fields.nope.sequence-group": "a"},
         "names the field 'nope', which does not exist"),
        ({"fields.a,nope.aggregate-function": "sum"},
         "names the field 'nope', which does not"),
        ({"fields.r.x.aggregate-function": "sum"},
         "names a nested field of the ROW column 'r'"),
        ({**PARTIAL, "fields..sequence-group": "a"}, "Invalid sequence-group option"),
        ({**PARTIAL, "fields.g,.sequence-group": "a"}, "Invalid sequence-group option"),
        ({**PARTIAL, "fields.sequence-group": "a"}, "Invalid sequence-group option"),
        ({**PARTIAL, "fields.k.sequence-group": "a"},
         "option 'fields.k.sequence-group' names the primary key field 'k'"),
        ({**PARTIAL, "fields.m.sequence-group": "a"}, "must name columns that have an order"),
        ({**GROUPED, "ignore-delete": "true",
          "partial-update.remove-record-on-sequence-group": "g"},
         "ignore-delete and partial-update.remove-record-on-sequence-group conflict"),
        ({**GROUPED, "partial-update.remove-record-on-sequence-group": "b"},
         "'partial-update.remove-record-on-sequence-group' names the field 'b', which is not a "
         "field of a sequence group"),
        ({**GROUPED, "fields.default-aggregate-function": "sum"},
         "the field 'b' has the aggregate function 'sum' but is in no sequence group"),
        ({**GROUPED, "fields.a.aggregate-function": "nope"},
         "column 'a' has the unknown aggregate function 'nope'"),
        ({**AGGREGATION, "aggregation.remove-record-on-delete": "true",
          "fields.a.ignore-retract": "true"},
         "aggregation.remove-record-on-delete and fields.a.ignore-retract conflict"),
        ({**AGGREGATION, "fields.a.ignore-retract": "yes"}, "'fields.a.ignore-retract'"),
        ({**AGGREGATION, "fields.s.aggregate-function": "sum"}, "'sum' does not support the type"),
        ({**AGGREGATION, "fields.default-aggregate-function": "sum"}, "column 's'"),
        ({"bucket": "2", "bucket-key": "nope"},
         "'bucket-key' names the field 'nope', which does"),
        ({"bucket": "2", "bucket-key": "m"}, "'bucket-key' names the column 'm' of type MAP"),
        ({"bucket": "2", "bucket-key": "a"}, "names 'a', which is not in the primary key"),
        ({"bucket-key": "k"}, "needs a fixed number of buckets"),
        ({"record-level.expire-time": "1 h"}, "needs 'record-level.time-field'"),
        ({"record-level.time-field": "s"}, "expected INT, BIGINT or TIMESTAMP"),
        ({"changelog-producer": "full-compaction", "streaming-read-overwrite": "true"},
         "'streaming-read-overwrite' = 'true' would report changes twice"),
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
        ({"sequence.snapshot-ordering": "true"}, "needs a primary key"),
        (
            {"streaming-read-overwrite": "true"},
            "'streaming-read-overwrite' = 'true' needs a primary key",
        ),
    ],
)
def test_options_that_need_a_primary_key_say_so(options: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidError, match=expected):
        validate("k INT, a INT", options, primary_keys=())


def test_bucket_key_of_partition_columns_is_refused() -> None:
    with pytest.raises(InvalidError, match="names the partition column 'd'"):
        validate("k INT, d INT", {"bucket": "1", "bucket-key": "d"}, ("k", "d"), ("d",))


def test_count_is_no_function_of_stored_values() -> None:
    with pytest.raises(
        InvalidError,
        match=r"'a' has the unknown aggregate function 'count' \(it is chosen column by column",
    ):
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
