"""Every argument of every public call, with numbers of any size and objects of any kind.

The call gives an answer or raises a `KeytideError`. Arguments are found by introspection.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
import keytide.cdc
import keytide.duckdb
import keytide.pinot
from keytide.base.arguments import _annotations

NUMBERS = [-1, 0, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**39, 1e400, float("nan"), True, "x"]
OBJECTS = [object, object(), b"\xff", {1: 2}, [[]], "\x00", "", [None], kt, set(),
           pa.schema([("a", pa.int64()), ("a", pa.int64())])]  # fmt: skip
KNOWN = {
    "key": 1, "keys": ["k"], "name": "x", "data": [{"k": 5, "v": 1}], "rows": [{"k": 5, "v": 1}],
    "new_name": "y", "start": 0, "schema": pa.schema([("k", pa.int64())]), "source": [{"k": 1}],
    "on": "target.k = source.k", "set": {"v": "1"}, "text": "SELECT 1", "query": "SELECT 1",
    "condition": "v > 0", "location": "/nowhere", "format": "parquet", "primary_key": ["k"],
    "target": "t", "sequence_by": ["v"], "changes": [], "values": {"v": "1"}, "table": "t", "to": 1,
}  # fmt: skip
"""What other arguments get that have no default."""

WAITS = {"follow", "session", "serve"}
"""Calls that wait, or start a process."""
FOR_OTHER_LAYERS = {"of", "carry_out"}


def holders(path: Any) -> dict[str, Any]:
    lake = kt.connect(path)
    table = lake.create_table("t", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    table.write([{"k": 1, "v": 1}])
    table.create_tag("tagged")
    table.write([{"k": 2, "v": 1}])
    return {
        "kt": kt, "lake": lake, "table": table, "scan": table.scan(), "changes": table.changes(0),
        "result": lake.sql("SELECT * FROM t"), "merge": table.merge([{"k": 1}], KNOWN["on"]),
        "cdc": keytide.cdc, "pinot": keytide.pinot,
        "duckdb": SimpleNamespace(register=keytide.duckdb.register),  # a module, not a package
    }  # fmt: skip


HOLDERS = ["kt", "lake", "table", "scan", "changes", "result", "merge", "cdc", "duckdb", "pinot"]


def calls(holder: Any) -> Iterator[tuple[str, Callable[..., Any], inspect.Signature]]:
    for name in dir(holder):
        call = getattr(holder, name)
        is_asked = name[0] != "_" and name not in WAITS | FOR_OTHER_LAYERS
        if is_asked and callable(call) and not inspect.isclass(call):
            yield name, call, inspect.signature(call)


def counts(annotation: Any) -> bool:
    """Whether a number is one of what an argument accepts."""
    return annotation in (int, float) or any(map(counts, typing.get_args(annotation)))


def asked(call: Callable[..., Any], signature: inspect.Signature, name: str, value: Any) -> None:
    others = {
        p.name: KNOWN.get(p.name)
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    is_placed = signature.parameters[name].kind in (
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.POSITIONAL_ONLY,
    )
    try:
        found = call(value) if is_placed else call(**{**others, name: value})
        for finish in ("to_pylist", "execute"):
            if hasattr(found, finish):
                getattr(found, finish)()
        if inspect.isgenerator(found):
            next(found, None)
    except kt.KeytideError:
        pass
    except TypeError as error:
        if "required positional" not in str(error):
            raise


@pytest.mark.one_in(14)
@pytest.mark.parametrize("holder", HOLDERS)
def test_numbers_of_any_size_give_an_answer_or_a_refusal(tmp_path: Any, holder: str) -> None:
    for place, value in enumerate(NUMBERS):
        held = holders(tmp_path / str(place))[holder]
        for _, call, signature in calls(held):
            for name in signature.parameters:
                if counts(_annotations(call).get(name)):
                    asked(call, signature, name, value)


def test_arguments_that_are_numbers_are_found(tmp_path: Any) -> None:
    found = [
        name
        for held in holders(tmp_path).values()
        for _, call, signature in calls(held)
        for name in signature.parameters
        if counts(_annotations(call).get(name))
    ]
    assert len(found) > 35


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", range(len(OBJECTS)))
def test_objects_of_any_kind_give_an_answer_or_a_refusal(tmp_path: Any, place: int) -> None:
    for holder in HOLDERS:
        held = holders(tmp_path / holder)[holder]
        for _, call, signature in calls(held):
            for name, parameter in signature.parameters.items():
                if parameter.kind is not parameter.VAR_KEYWORD:
                    asked(call, signature, name, OBJECTS[place])


@pytest.mark.parametrize("odd", [object, 1, "local[2]", kt])
def test_what_is_no_spark_session_is_refused_by_name(tmp_path: Any, odd: Any) -> None:
    table = kt.connect(tmp_path).create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    for call in (
        lambda: kt.connect(tmp_path, spark=odd),
        lambda: table.scan().to_spark(odd),
        lambda: table.changes(0).to_spark(odd),
        lambda: kt.spark.register(odd),
        lambda: kt.spark.register_lake(odd, kt.connect(tmp_path)),
    ):
        with pytest.raises(kt.InvalidError, match=r"spark is .*expected a Spark session"):
            call()
