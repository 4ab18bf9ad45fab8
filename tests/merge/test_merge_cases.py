"""The merge steps of the conformance cases, driven against the engines alone.

Each is merged all at once and, from the oldest version on, one version at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from merging import Merging, columns_of

from keytide.errors import InvalidError
from keytide.merge.order import IS_ADD

Case = dict[str, Any]

CASES: list[Case] = [
    case
    for case in json.loads((Path(__file__).parents[1] / "data/cases/paimon.json").read_text())
    if case["level"] in ("merge-function", "aggregator-unit")
    and case["id"].startswith(("fn-", "agg-mf-", "pu-mf-"))
]
MERGES: dict[str, Callable[[Merging, list[Any]], pl.DataFrame]] = {
    "at_once": Merging.at_once,
    "from_the_oldest": Merging.from_the_oldest,
}
ERRORS = {
    "fn-sum-overflow-int": r"column 'v'.*'sum'.*overflow",
    "fn-nested-update-null-key-error": "column '.*': an element has NULL in its nested key",
}


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_merges_as_stated(
    case: Case, merge: Callable[[Merging, list[Any]], pl.DataFrame]
) -> None:
    ddl = case["ddl"]
    columns = columns_of(
        ", ".join(f"{n} {t}" for n, t in zip(ddl["columns"], ddl["types"], strict=True))
    )
    merging = Merging.of(columns, ddl["options"], key=ddl["primary_key"])
    rows: list[Any] = []
    for step in case["steps"]:
        if "insert" in step:
            rows += step["insert"]
        elif "single_record_pass" not in step:  # a lone version is left alone
            check(merging, merge(merging, rows), step["check_rows"], step.get("internal_value"))
    if "expect_error" in case:
        with pytest.raises(InvalidError, match=ERRORS[case["id"]]):
            merge(merging, rows)
        return
    check(merging, merge(merging, rows), case["expect_rows"], case.get("internal_value"))


def check(
    merging: Merging, merged: pl.DataFrame, expected: list[Any], tombstone: list[Any] | None
) -> None:
    wanted = merging.versions([("+I", *row) for row in expected])
    assert merging.visible(merged) == merging.visible(wanted)
    if tombstone is not None:
        removed = merging.rows(merged.filter(~IS_ADD))
        assert removed == [("-D", *tombstone)]


def test_every_function_case_is_here() -> None:
    assert len(CASES) == 31
