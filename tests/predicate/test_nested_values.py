"""Values that are nested without end are refused; beyond some depth Arrow would end the process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.predicate.value_columns import NESTING_MAX, refuse_nested_types, refuse_nested_values

DEPTHS = [NESTING_MAX + 1, 3_000, 100_000]


def lists(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def dicts(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def mixed(depth: int) -> Any:
    value: Any = 1
    for place in range(depth):
        array = np.empty(1, dtype=object)
        array[0] = value
        value = [(value,), [value, value], {"a": value, "b": value}, array][place % 4]
    return value


def list_of_itself(depth: int) -> Any:
    value: list[Any] = []
    value += [value, value]
    return value


def dict_of_itself(depth: int) -> Any:
    value: dict[str, Any] = {}
    value["a"] = [value, value]
    return value


MAKERS: dict[str, Callable[[int], Any]] = {
    each.__name__: each for each in (lists, dicts, mixed, list_of_itself, dict_of_itself)
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_value_that_is_nested_too_deep_is_refused(maker: Callable[[int], Any], depth: int) -> None:
    with pytest.raises(
        kt.InvalidError, match=f"'v' has a value with more than {NESTING_MAX} nested lists"
    ):
        refuse_nested_values([None, 1, maker(depth)], "v", "t")


@pytest.mark.parametrize("maker", [lists, dicts, mixed], ids=["lists", "dicts", "mixed"])
def test_value_of_the_greatest_depth_passes(maker: Callable[[int], Any]) -> None:
    refuse_nested_values([maker(NESTING_MAX), "text", b"bytes", np.arange(9)], "v", "t")


@pytest.mark.parametrize(
    "make", [pa.list_, lambda t: pa.struct([("a", t)])], ids=["list", "struct"]
)
def test_type_that_is_nested_too_deep_is_refused(make: Callable[[Any], Any]) -> None:
    type_: Any = pa.int32()
    for _ in range(NESTING_MAX):
        type_ = make(type_)
    refuse_nested_types(pa.schema([("v", type_)]), "t")
    with pytest.raises(kt.InvalidError, match="'v' has a value with more"):
        refuse_nested_types(pa.schema([("v", make(type_))]), "t")


def calls(warehouse: str) -> list[str]:
    """What every call that takes rows says of each such value, in every container."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.list_(pa.int64()))])
    table = kt.connect(warehouse).create_table("t", schema, ["k"])
    containers: list[Callable[[str, Any], Any]] = [
        lambda name, value: [{"k": 1, name: value}],
        lambda name, value: pd.DataFrame({"k": [1], name: pd.Series([value], dtype=object)}),
    ]
    return [
        said_by(call)
        for maker in MAKERS.values()
        for made in containers
        for call in (
            partial(table.merge, made("other", maker(5_000)), "target.k = source.k"),
            partial(table.merge, made("v", maker(5_000)), "target.k = source.k"),
            partial(table.write, made("v", maker(5_000))),
            partial(table.overwrite, made("v", maker(5_000))),
        )
    ]


def said_by(call: Callable[[], Any]) -> str:
    try:
        call()
    except kt.KeytideError as error:
        return type(error).__name__
    return "nothing"


@pytest.mark.takes_turns
def test_no_call_ends_the_process_for_a_nested_value(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == ["InvalidError"] * len(MAKERS) * 2 * 4


def test_polars_frame_that_is_nested_too_deep_is_refused(tmp_path: Any) -> None:
    table = kt.connect(tmp_path).create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    frame = pl.DataFrame({"k": pl.Series([lists(65)])})
    with pytest.raises(kt.InvalidError, match=r"cannot read the rows .*: Recursion level"):
        table.write(frame)


if __name__ == "__main__":
    print(json.dumps(calls(sys.argv[1])))
