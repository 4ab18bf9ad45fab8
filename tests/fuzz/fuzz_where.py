"""Random conditions, as SQL text and as a test of three values on a row."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from fuzz_columns import rank

from keytide.types import DataType

__all__ = ["condition"]

Test = Callable[[Mapping[str, Any]], "bool | None"]

_LITERALS: dict[str, list[tuple[str, Any]]] = {
    "BOOLEAN": [("TRUE", True), ("FALSE", False)],
    "DATE": [("DATE '1970-01-01'", 0), ("DATE '2024-02-29'", 19_782), ("DATE '1969-12-31'", -1)],
    "DOUBLE": [("1.5", 1.5), ("-2.0", -2.0), ("0", 0.0)],
    "FLOAT": [("1.5", 1.5), ("-2.0", -2.0), ("0", 0.0)],
    **{kind: [("0", 0), ("1", 1), ("-1", -1), ("100", 100)]
       for kind in ("TINYINT", "SMALLINT", "INT", "BIGINT")},
    **{kind: [("''", ""), ("'a'", "a"), ("'ab'", "ab"), ("'ü'", "ü"), ("'b'", "b")]
       for kind in ("STRING", "VARCHAR(5)")},
    "TIMESTAMP(6)": [("TIMESTAMP '1970-01-01 00:00:00'", 0),
                     ("TIMESTAMP '1970-01-01 00:00:00.000001'", 1)],
    "TIMESTAMP(3)": [("TIMESTAMP '1970-01-01 00:00:00'", 0),
                     ("TIMESTAMP '1970-01-01 00:00:00.001'", 1)],
}  # fmt: skip


def condition(
    chance: random.Random, columns: Mapping[str, DataType], depth: int = 2
) -> tuple[str, Test]:
    """A condition over some columns."""
    if depth and chance.random() < 0.4:
        return _combined(chance, columns, depth)
    name = chance.choice(list(columns))
    literals = _LITERALS.get(columns[name].sql())
    if literals is None or chance.random() < 0.2:
        if chance.random() < 0.5:
            return f"{name} IS NULL", lambda row: row[name] is None
        return f"{name} IS NOT NULL", lambda row: row[name] is not None
    if isinstance(literals[0][1], str) and chance.random() < 0.3:
        return _like(chance, name)
    return _compared(chance, name, columns[name], literals)


def _combined(
    chance: random.Random, columns: Mapping[str, DataType], depth: int
) -> tuple[str, Test]:
    left, is_left = condition(chance, columns, depth - 1)
    right, is_right = condition(chance, columns, depth - 1)
    word = chance.choice(["AND", "OR", "NOT"])
    if word == "NOT":
        return f"NOT ({left})", lambda row: _not(is_left(row))
    if word == "AND":
        return f"({left} AND {right})", lambda row: _and(is_left(row), is_right(row))
    return (
        f"({left} OR {right})",
        lambda row: _not(_and(_not(is_left(row)), _not(is_right(row)))),
    )


def _not(v: bool | None) -> bool | None:
    return None if v is None else not v


def _and(a: bool | None, b: bool | None) -> bool | None:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: not b < a,
    ">": lambda a, b: b < a,
    ">=": lambda a, b: not a < b,
}


def _compared(
    chance: random.Random, name: str, kind: DataType, literals: list[tuple[str, Any]]
) -> tuple[str, Test]:
    (text, v), (other, w) = chance.choice(literals), chance.choice(literals)
    how = chance.choice([*_SIGNS, "IN", "BETWEEN"])

    def test(row: Mapping[str, Any]) -> bool | None:
        found = row[name]
        if found is None:
            return None
        place, first, second = rank(found, kind), rank(v, kind), rank(w, kind)
        if how == "IN":
            return place in (first, second)
        if how == "BETWEEN":
            return not place < first and not second < place
        return _SIGNS[how](place, first)

    tail = {"IN": f"IN ({text}, {other})", "BETWEEN": f"BETWEEN {text} AND {other}"}
    return f"{name} {tail.get(how, f'{how} {text}')}", test


def _like(chance: random.Random, name: str) -> tuple[str, Test]:
    pattern, test = chance.choice(_PATTERNS)
    return f"{name} LIKE '{pattern}'", lambda row: None if row[name] is None else test(row[name])


_PATTERNS: list[tuple[str, Callable[[str], bool]]] = [
    ("a%", lambda v: v.startswith("a")),
    ("%b", lambda v: v.endswith("b")),
    ("_", lambda v: len(v) == 1),
    ("%", lambda v: True),
    ("ab", lambda v: v == "ab"),
    ("%b%", lambda v: "b" in v),
]
