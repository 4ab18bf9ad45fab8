"""CALL: arguments by the names that users know, times as typed literals, misspellings named."""

from __future__ import annotations

import inspect
import re
from datetime import datetime
from typing import get_args

import pyarrow as pa
import pytest

import keytide as kt
from keytide.sql.procedures import PROCEDURES

PARAMETERS = {
    name: [*inspect.signature(call, eval_str=True).parameters.values()][1:]
    for name, call in PROCEDURES.items()
}
NAMED = [
    (name, parameter.name)
    for name, parameters in PARAMETERS.items()
    for parameter in parameters
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
]
TIMES = [
    (name, parameter.name)
    for name, parameters in PARAMETERS.items()
    for parameter in parameters
    if datetime in get_args(parameter.annotation)
]


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    """A table of three snapshots."""
    lake = kt.connect(warehouse)
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    for k in range(3):
        table.write([{"k": k}])
    return lake


def test_arguments_that_are_times_are_known() -> None:
    assert set(TIMES) == {each for each in NAMED if re.search("older_than|timestamp$", each[1])}
    assert len(TIMES) > 6


@pytest.mark.parametrize(("procedure", "argument"), TIMES)
def test_time_means_the_same_in_every_spelling(
    lake: kt.Lake, procedure: str, argument: str
) -> None:
    spellings = ["TIMESTAMP '2020-01-01 00:00:00'", "TIMESTAMP_LTZ '2020-01-01 01:00:00+01:00'",
                 "DATE '2020-01-01'", "'2020-01-01'", "1577836800000"]  # fmt: skip
    tag = ", tag => 'x'" if procedure == "create_tag_from_timestamp" else ""
    said = set()
    for spelt in spellings:
        try:
            done = lake.sql(f"CALL sys.{procedure}(table => 't', {argument} => {spelt}{tag})")
            said.add(str(done.to_pylist()))
        except kt.NotFoundError as error:  # no snapshot is so old
            said.add(re.sub("oldest one .*", "", str(error)))
        if tag:
            lake.table("t").delete_tag("x")
    assert len(said) == 1


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("procedure", "argument"), NAMED)
def test_misspelled_argument_is_named_with_the_nearest_one(
    lake: kt.Lake, procedure: str, argument: str
) -> None:
    wrong = f"{argument}z"
    message = rf"sys\.{procedure} has no argument '{wrong}' \(did you mean '{argument.lower()}'"
    for database in ("sys", "System"):
        with pytest.raises(kt.InvalidError, match=message):
            lake.sql(f"CALL {database}.{procedure}({wrong} => 1)")


@pytest.mark.parametrize("procedure", [name for name, argument in NAMED if argument == "snapshot"])
def test_snapshot_has_one_name_everywhere_and_that_of_flink(lake: kt.Lake, procedure: str) -> None:
    given = "table => 't'" + (", tag => 'x'" if procedure.endswith("_tag") else "")
    if procedure == "replace_tag":
        lake.table("t").create_tag("x")
    for name in ("snapshot", "snapshot_id", "SNAPSHOT_ID"):
        with pytest.raises(kt.NotFoundError, match="no snapshot 9"):
            lake.sql(f"CALL sys.{procedure}({given}, {name} => 9)")
    with pytest.raises(kt.InvalidError, match="snapshot is given twice, in two spellings"):
        lake.sql(f"CALL sys.{procedure}({given}, snapshot => 1, snapshot_id => 2)")


def test_what_is_no_literal_is_refused_with_those_there_are(lake: kt.Lake) -> None:
    for given in ("now()", "TIMESTAMP 'soon'", "CAST('1' AS INT)", "k"):
        with pytest.raises(kt.InvalidError, match=r"expected a literal: .*TIMESTAMP '2026"):
            lake.sql(f"CALL sys.expire_snapshots(table => 't', older_than => {given})")
