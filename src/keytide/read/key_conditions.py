"""The keys that a condition allows, if there are few."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from keytide.format.data_file import Key
from keytide.predicate.predicate import Predicate, conjuncts, equal_values
from keytide.predicate.values.spellings import has_one_spelling
from keytide.types import Field

__all__ = ["pinned_keys"]

# With more keys, reading all rows around them is as fast as searching for each.
_KEYS_MAX = 128


def pinned_keys(condition: Predicate | None, key: Sequence[Field]) -> list[Key] | None:
    """The only keys that can match a condition, each once, ascending.

    None if the condition leaves a column open, if there are too many keys, and for keys that are
    not integers or strings: equal values of other types may be stored in several forms.
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
