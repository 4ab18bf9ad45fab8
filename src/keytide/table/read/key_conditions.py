"""Conditions about the key: those that some keys fulfil, and the few keys that one leaves open."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from keytide.format.data_file import Key
from keytide.table.conditions.predicate import (
    Comparison,
    Predicate,
    conjunction,
    conjuncts,
    equal_values,
)
from keytide.table.values.spellings import has_one_spelling
from keytide.types import Field

__all__ = ["key_range", "pinned_keys"]

# Of more keys, reading all rows around them is as fast as looking for each.
_KEYS_MAX = 128


def pinned_keys(condition: Predicate | None, key: Sequence[Field]) -> list[Key] | None:
    """The only keys that can fulfil a condition, each once, ascending.

    None where it leaves a column open, for too many, and for keys that are not whole numbers and
    texts: equal values of other types may be stored in several forms.
    """
    terms = conjuncts(condition)
    values = [_pinned(equal_values(terms, field.name), field) for field in key]
    known = [some for some in values if some is not None]
    if not key or len(known) < len(key) or math.prod(map(len, known)) > _KEYS_MAX:
        return None
    return sorted(itertools.product(*known))


def _pinned(values: Sequence[Any] | None, field: Field) -> Sequence[Any] | None:
    if values is None or not has_one_spelling(field.type):
        return None
    python = str if field.type.root == "VARCHAR" else int
    if any(type(value) is not python for value in values):
        return None
    return tuple(dict.fromkeys(values))


def key_range(keys: pl.DataFrame) -> Predicate | None:
    """The range of the first key column, if every key has a value there."""
    first = keys.to_series(0)
    if not len(first) or first.null_count():
        return None
    ends = first.sort()[[0, -1]]  # as keys are sorted, NaN last
    if ends.dtype == pl.Datetime:
        ends = ends.to_physical()  # Python's datetime has no nanoseconds
    low, high = ends
    name = first.name
    return conjunction([Comparison(name, ">=", low), Comparison(name, "<=", high)])
