"""Warnings name the line that called Keytide, whichever way the call went."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt

SCHEMA = pa.schema([("k", pa.int64())])
IDLE = {"version.retention": "1 d"}  # compactions of such a table merge all versions anyway

CALLS: dict[str, Callable[[kt.Lake], object]] = {
    "create_table": lambda lake: lake.create_table("t", SCHEMA, ["k"], options=IDLE),
    "CREATE TABLE": lambda lake: lake.sql(
        "CREATE TABLE t (k BIGINT, PRIMARY KEY (k)) WITH ('version.retention' = '1 d')"
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_warning_names_the_calling_line(call: Callable[[kt.Lake], object], tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call(kt.connect(tmp_path))
    ours = [each for each in told if issubclass(each.category, kt.KeytideWarning)]
    assert [Path(each.filename).name for each in ours] == [Path(__file__).name]
