"""Frozen dataclasses of `keytide.base.dataclass` are those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.base.dataclass import dataclass

NO_DEFAULT = "none"
members = st.fixed_dictionaries(
    {
        "default": st.sampled_from([NO_DEFAULT, 7, list]),
        "init": st.booleans(),
        "repr": st.booleans(),
        "compare": st.booleans(),
        "hash": st.sampled_from([None, True, False]),
        "kw_only": st.booleans(),
    }
)
shapes = st.fixed_dictionaries(
    {
        "members": st.lists(members, max_size=4),
        "options": st.fixed_dictionaries(
            {}, optional={n: st.booleans() for n in ("eq", "repr", "kw_only")}
        ),
        "own": st.sets(st.sampled_from(["__repr__", "__eq__", "__hash__", "__post_init__"])),
    }
)
Decorator = Callable[..., Any]


def made(decorator: Decorator, shape: dict[str, Any], base: type = object, at: str = "m") -> type:
    """A class with these fields and functions of its own."""
    space: dict[str, Any] = {"__annotations__": {}, "__module__": __name__, "__doc__": "A class."}
    for number, member in enumerate(shape["members"]):
        given = dict(member)
        default = given.pop("default")
        if default is list:
            given["default_factory"] = list
        elif default != NO_DEFAULT or not given["init"]:
            given["default"] = default
        space["__annotations__"][f"{at}{number}"] = "Any"
        space[f"{at}{number}"] = field(**given)
    for name in shape["own"]:
        space[name] = OWN[name]
    return decorator(frozen=True, **shape["options"])(type("Made", (base,), space))


OWN: dict[str, Any] = {
    "__repr__": lambda self: "own",
    "__eq__": lambda self, other: True,
    "__hash__": lambda self: 3,
    "__post_init__": lambda self: object.__setattr__(self, "seen", True),
}


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (TypeError, FrozenInstanceError, SyntaxError) as error:
        return type(error)


def shown(cls: Any) -> Any:
    """Everything about a class that callers can tell."""
    names = [f.name for f in dataclasses.fields(cls) if f.init]
    every = [outcome(lambda v=v: cls(**dict.fromkeys(names, v))) for v in (1, 2, 1)]
    one, two, same = every
    return {
        "signature": str(inspect.signature(cls)),
        "annotations": dict(cls.__init__.__annotations__),
        "match": cls.__match_args__,
        "parameters": [getattr(cls.__dataclass_params__, n) for n in ("eq", "repr", "frozen")],
        "members": [f.name for f in dataclasses.fields(cls)],
        "made": [getattr(each, "__dict__", each) for each in every],
        "equal": [one == same, one == two, one == 5],
        "hash": outcome(lambda: hash(one) == hash(same)),
        "no hash": cls.__hash__ is None,
        "own text": type(one).__repr__ is object.__repr__ or repr(one),
        "set": [outcome(lambda n=n: setattr(one, n, 0)) for n in (*names, "other")],
        "delete": [outcome(lambda n=n: delattr(one, n)) for n in names],
        "replaced": outcome(lambda: vars(dataclasses.replace(one, **dict.fromkeys(names[:1], 5)))),
        "copied": outcome(lambda: copy.copy(one).__dict__),
        "without": outcome(lambda: cls().__dict__),
        "too many": outcome(lambda: cls(*range(9))),
    }  # fmt: skip


@given(shape=shapes)
def test_class_is_as_that_of_the_standard_library(shape: dict[str, Any]) -> None:
    plain = outcome(lambda: made(dataclasses.dataclass, shape))
    quick = outcome(lambda: made(dataclass, shape))
    if not isinstance(plain, type) or not dataclasses.is_dataclass(plain):
        assert quick is plain
    else:
        assert shown(quick) == shown(plain)


@given(below=shapes, above=shapes)
def test_class_with_a_base_is_too(below: dict[str, Any], above: dict[str, Any]) -> None:
    def both(decorator: Decorator) -> type:
        base = made(decorator, below)
        return made(decorator, above, base, at="n")

    plain, quick = outcome(lambda: both(dataclasses.dataclass)), outcome(lambda: both(dataclass))
    if not isinstance(plain, type) or not dataclasses.is_dataclass(plain):
        assert quick is plain
    else:
        assert shown(quick) == shown(plain)


@dataclass(frozen=True)
class Point:
    """A value with a constant of the class."""

    x: int
    y: list[int] = field(default_factory=list)
    origin: ClassVar[int] = 0


class Named(Point):
    """A class of a user, which is no dataclass."""


def test_value_is_pickled_and_compared() -> None:
    point = Point(1)
    assert pickle.loads(pickle.dumps(point)) == point == Point(1, [])
    assert repr(point) == "Point(x=1, y=[])"
    assert Point(1).y is not Point(1).y
    assert Point.__init__.__qualname__ == "Point.__init__"


def test_members_of_a_subclass_can_be_set_but_no_fields() -> None:
    named = Named(1)
    named.name = "a"  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        named.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del named.x


def test_class_of_the_standard_library_may_derive_from_one_if_it_is_frozen() -> None:
    @dataclasses.dataclass(frozen=True)
    class Third(Point):
        """With one more."""

        z: int = 3

    @dataclass(frozen=True)
    class Fourth(Third):
        """With one more, and the decorator of Keytide."""

        w: int = 4

    assert repr(Third(1)).endswith("Third(x=1, y=[], z=3)")
    assert repr(Fourth(1, w=5)).endswith("Fourth(x=1, y=[], z=3, w=5)")
    with pytest.raises(FrozenInstanceError):
        Fourth(1).w = 3  # type: ignore[misc]
    assert dataclasses.replace(Third(1), x=2) == Third(2)
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):

        @dataclasses.dataclass
        class Loose(Point):  # type: ignore[misc]
            """Not frozen."""


def test_class_that_sets_members_itself_is_refused() -> None:
    with pytest.raises(TypeError, match="__setattr__"):

        @dataclass(frozen=True)
        class Odd:
            """A contradiction."""

            def __setattr__(self, name: str, value: Any) -> None:
                """Set a member."""


def test_every_module_takes_its_dataclasses_from_here() -> None:
    others = [
        path.name
        for path in Path(kt.__file__).parent.rglob("*.py")
        if re.search(r"^(from dataclasses import.*\bdataclass\b|import dataclasses)",
                     path.read_text(), re.MULTILINE)
    ]  # fmt: skip
    assert others == ["dataclass.py"]
