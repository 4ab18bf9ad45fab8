"""What is no argument for a public call is refused by name, before anything is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

import keytide as kt
import keytide.cdc
from keytide.base.arguments import checked
from keytide.definition import schema_evolution


@checked
def take(
    *texts: str,
    number: int = 0,
    names: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
    path: tuple[str, ...] = (),
    moment: date | str | int | None = None,
    place: str | Path = "",
    flag: bool = False,
    mode: Literal["a", "b"] = "a",
    kinds: frozenset[str] = frozenset(),
    function: Callable[..., Any] | None = None,
    anything: Any = None,
) -> dict[str, Any]:
    return dict(locals())


class Failing(Sequence[str]):
    def __getitem__(self, place: Any) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("number", "1", "take: number is '1' of type str; expected an integer$"),
        ("number", True, "number is True of type bool; expected an integer"),
        ("number", 1.0, "number is 1.0 of type float"),
        ("names", "k", r"names is 'k' .*expected a list of strings or None, such as \['k'\]"),
        ("names", ["k", 1], "a member of names is 1 of type int; expected a string"),
        ("names", (n for n in "k"), "names is <generator .*expected a list of strings or None"),
        ("names", {"k": 1}, "names is {'k': 1} of type dict"),
        ("names", Failing(), "names is <.*Failing"),
        ("names", ["\ud800"], "expected Unicode text, found half of a character at place 0"),
        ("options", {"bucket": 2}, "option 'bucket' has the value 2 of type int.*example '2'"),
        ("options", {1: "x"}, "a key of options is 1 of type int; expected a string"),
        ("options", [("a", "b")], "expected a dict of strings to strings or None"),
        ("path", "v", r"expected a tuple of strings, such as \('v',\)"),
        ("moment", "\ud800", "moment is .*found half of a character at place 0"),
        ("moment", 1.5, "expected date or a string or an integer or None"),
        ("place", b"x", "expected a string or a path"),
        ("flag", 1, "flag is 1 of type int; expected True or False"),
        ("mode", "c", "mode is 'c' of type str; expected one of 'a', 'b'"),
        ("kinds", ["a"], "expected a set of strings"),
        ("function", "max", "expected a function or None"),
    ],
)
def test_argument_of_another_type_is_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        take(**{name: value})


def test_arguments_that_fit_are_handed_on_in_plain_form() -> None:
    found = take(
        "a",
        number=np.int64(3),  # type: ignore[arg-type]
        names=("k", np.str_("v")),
        options={"a": "b"},
        path=["x"],  # type: ignore[arg-type]
        moment=date(2024, 1, 1),
        place=Path("x"),
        anything=object,
    )
    assert type(found["number"]) is int
    assert [type(name) for name in found["names"]] == [str, str]
    assert found["path"] == ("x",)
    assert found["texts"] == ("a",)
    assert found["anything"] is object


def test_wrong_number_of_arguments_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match=r"take\(\) got an unexpected keyword argument 'nmae'"):
        take(nmae=1)  # type: ignore[call-arg]


def public_calls(lake: kt.Lake) -> dict[str, Callable[..., Any]]:
    """Every call of the public surface that needs an argument."""
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    holders = {
        "kt": {name: getattr(kt, name) for name in ("connect", "open_table", "parse_sql_type",
               "register_merge_function", "Field")},
        "cdc": {name: getattr(keytide.cdc, name) for name in keytide.cdc.__all__},
        "evolution": {name: getattr(schema_evolution, name) for name in schema_evolution.__all__},
        "lake": {name: getattr(lake, name) for name in dir(lake)},
        "table": {name: getattr(table, name) for name in dir(table)},
    }  # fmt: skip
    found = {
        f"{holder}.{name}": call
        for holder, members in holders.items()
        for name, call in members.items()
        if name[0] != "_" and callable(call) and required(call)
    }
    return {name: call for name, call in found.items() if name not in FOR_OTHER_LAYERS}


FOR_OTHER_LAYERS = {
    "cdc.Decoded", "evolution.evolve", "table.of",
}  # fmt: skip
"""What callers are given and do not call, or call with what only Keytide makes."""


def required(call: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:
        return []
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.kind not in many and p.default is p.empty]


def test_every_public_call_refuses_what_is_no_argument(tmp_path: Path) -> None:
    calls = public_calls(kt.connect(tmp_path))
    assert len(calls) > 25
    for name, call in calls.items():
        given = {parameter: object() for parameter in required(call)}
        with pytest.raises(kt.InvalidError):
            print(name, call(**given))


def test_every_public_method_checks_its_arguments_those_that_may_be_left_out_too() -> None:
    unchecked = [
        f"{made.__name__}.{name}"
        for made in filter(inspect.isclass, (getattr(kt, name) for name in kt.__all__))
        for name, method in inspect.getmembers(made, inspect.isfunction)
        if name[0] != "_" and takes_typed_arguments(method) and not hasattr(method, "__wrapped__")
    ]
    assert unchecked == []


def takes_typed_arguments(method: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return any(p.annotation not in (p.empty, "Any") for p in parameters)


def test_every_moment_is_a_number_of_64_bits(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    table.write([{"k": 1}])
    asked = [
        (name, parameter.name)
        for name, method in inspect.getmembers(table, inspect.ismethod)
        for parameter in inspect.signature(method).parameters.values()
        if name[0] != "_" and "Moment" in str(parameter.annotation)
    ]
    assert len(asked) > 5
    others: dict[str, dict[str, Any]] = {
        "why": {"key": 1},
        "get": {"key": 1},
        "get_many": {"keys": [1]},
    }
    for name, parameter in asked:
        for moment in (2**63, -(2**63) - 1, 10**400):
            with pytest.raises(kt.InvalidError, match="64-bit"):
                print(name, getattr(table, name)(**{parameter: moment}, **others.get(name, {})))


class FailingMapping(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "odd", [[FailingMapping()], (FailingMapping(),), [Failing()], [[object()]]]
)
def test_every_public_call_refuses_lists_of_what_fails(tmp_path: Path, odd: Any) -> None:
    for name, call in public_calls(kt.connect(tmp_path)).items():
        given = dict.fromkeys(required(call), odd)
        with pytest.raises(kt.InvalidError):
            print(name, call(**given))
