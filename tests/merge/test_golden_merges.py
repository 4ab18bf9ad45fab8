"""Merge results of the reference implementation, one key each.

Its results stand behind a shortcut that leaves a lone version alone, as ours do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from merging import Merging, columns_of

from keytide.errors import InvalidError

CASES = json.loads((Path(__file__).parents[1] / "data/golden.json").read_text())["merge_functions"]

ERRORS = {
    "pu_delete_error": "partial-update does not accept deletes by default",
    "agg_sum_overflow_int": r"column 'a'.*'sum' does not fit Int32 \(overflow\)",
    "agg_max_retract_error": "aggregate function 'max' cannot retract values.*"
    "'fields.a.ignore-retract'='true'",
    "first_row_delete_error": "first-row does not accept -D and -U rows",
}

# Where our answer is another on purpose: the law that asks for it, and our rows.
DEVIATIONS: dict[str, tuple[str, list[Any]]] = {
    "dedup_ignore_delete_only": ("an ignored delete is as if it had never been written", []),
    "pu_ignore_delete_all": ("an ignored delete is as if it had never been written", []),
}


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["id"])
def test_merge_agrees_with_reference(case: dict[str, Any]) -> None:
    columns = columns_of(", ".join(f"{f['name']} {f['type']}" for f in case["fields"]))
    options = {"merge-engine": case["engine"], **case["options"]}
    merging = Merging.of(columns, options, key=case["pk"])
    rows = [(row["kind"], *typed(row["values"], columns)) for row in case["rows"]]
    if case["id"] in ERRORS:
        with pytest.raises(InvalidError, match=ERRORS[case["id"]]):
            merging.at_once(rows)
        return
    expected = [(case["java"]["kind"], *typed(case["java"]["values"], columns))]
    if case["id"] in DEVIATIONS:
        expected = DEVIATIONS[case["id"]][1]
    merged = merging.at_once(rows)
    assert merging.rows(merged) == merging.rows(merging.versions(expected))


def test_every_error_and_deviation_belongs_to_a_case() -> None:
    ids = {case["id"] for case in CASES["cases"]}
    assert {*ERRORS, *DEVIATIONS} <= ids
    assert {case["id"] for case in CASES["cases"] if "error" in case["java"]} == set(ERRORS)


def typed(values: list[str | None], columns: Any) -> list[Any]:
    return [
        value == "true" if value is not None and column.type.root == "BOOLEAN" else value
        for value, column in zip(values, columns, strict=True)
    ]
