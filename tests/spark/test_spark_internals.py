"""Functions of pyspark that Keytide replaces take every argument that they took before."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest

import keytide as kt
from keytide.spark.internals import wrap


class Owner:
    def call(self, first: str, *others: Any, **named: Any) -> Any:
        return first, others, named


def counting(owner: type[Owner]) -> list[str]:
    calls: list[str] = []

    def around(original: Any, self: Any, /, first: str, *others: Any, **named: Any) -> Any:
        calls.append(first)
        return original(self, first, *others, **named)

    wrap(owner, "call", around)
    wrap(owner, "call", around)  # a second time changes nothing
    return calls


def test_wrapped_function_takes_every_name() -> None:
    owner = type("Own", (Owner,), {})
    calls = counting(owner)
    named = {"original": 1, "owner": 2, "name": 3, "around": 4, "spark": 5}
    assert owner().call("a", 0, **named) == ("a", (0,), named)
    assert owner().call(first="b") == ("b", (), {})
    assert calls == ["a", "b"]


def test_function_that_others_wrapped_is_wrapped_too() -> None:
    owner = type("Own", (Owner,), {})

    @wraps(Owner.call)
    def traced(self: Any, *arguments: Any, **named: Any) -> Any:
        return Owner.call(self, *arguments, **named)

    owner.call = traced  # type: ignore[attr-defined]
    calls = counting(owner)
    assert owner().call("a") == ("a", (), {})
    assert calls == ["a"]


@pytest.mark.spark
def test_names_of_spark_functions_stay_free(spark: Any, warehouse: str) -> None:
    kt.spark.register(spark)
    frame = spark.createDataFrame([(1,)], "k int")
    for name in ("original", "spark", "more"):
        assert spark.sql(f"SELECT k FROM {{{name}}}", **{name: frame}).collect()[0].k == 1
    table = kt.connect(warehouse).create_table(
        "t", [kt.Field(0, "k", kt.parse_sql_type("INT"))], ["k"]
    )
    frame.write.format(source="keytide").mode("append").save(table.uri)
    assert spark.read.format("keytide").load(table.uri).count() == 1
    assert spark.readStream.format(source="keytide").load(table.uri).isStreaming
