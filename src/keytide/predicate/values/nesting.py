"""Limits the nesting of values: beyond some depth, Arrow and Polars crash the process.

They process lists and dicts recursively, and a container that contains itself never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from keytide.errors import InvalidError

__all__ = ["NESTING_MAX", "refuse_nested_types", "refuse_nested_values"]

NESTING_MAX = 60
"""The maximum nesting of lists, dicts and structs.

Arrow passes at most 64 levels to other libraries.
"""

_CONTAINERS = (Mapping, list, tuple, set, frozenset, np.ndarray)


def refuse_nested_values(values: Iterable[Any], column: object, table: str) -> None:
    """Raise `InvalidError`, which names the column, for a Python value with too many levels.

    For values whose type is not known yet: with a type, nothing is deeper than the type.
    """
    level = list(values)
    for _ in range(NESTING_MAX + 1):
        # Most columns contain no containers, which the classes of their values show.
        if not any(issubclass(each, _CONTAINERS) for each in set(map(type, level))):
            return
        # Each container once. Otherwise, containers that share their items would double at every
        # level.
        held = {id(value): value for value in level if isinstance(value, _CONTAINERS)}
        level = [item for value in held.values() for item in _items(value)]
    raise _too_deep(column, table)


def refuse_nested_types(schema: pa.Schema, table: str) -> None:
    """Raise `InvalidError` for a column whose type has too many levels."""
    for field in schema:
        level, depth = [field.type], 0
        while level := [part for each in level for part in _parts(each)]:
            depth += 1
            if depth > NESTING_MAX:
                raise _too_deep(field.name, table)


def _items(container: Any) -> Iterable[Any]:
    if isinstance(container, Mapping):
        return container.values()
    # An array of numbers or strings has no lower levels.
    if isinstance(container, np.ndarray):
        return container.flat if container.dtype == object else ()
    return container  # type: ignore[no-any-return]  # a list, a tuple or a set


def _parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        yield type_.value_type
        return
    yield from (type_.field(place).type for place in range(type_.num_fields))


def _too_deep(column: object, table: str) -> InvalidError:
    return InvalidError(
        f"table {table}: column {column!r} has a value with more than {NESTING_MAX} nested "
        "lists, dicts or structs; flatten it, or store it as a JSON string"
    )
