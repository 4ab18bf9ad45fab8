"""Values that rows have to have, as conditions to read by."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from keytide.table.conditions.predicate import (
    Comparison,
    In,
    Predicate,
    conjunction,
    conjuncts,
)
from keytide.table.read.lookup import key_range
from keytide.table.state.view import TableView
from keytide.table.values.spellings import has_one_spelling

__all__ = ["among_keys", "narrowed"]

_LISTED_MAX = 1 << 20
"""Of more values their range is asked for: a list of them is held in Python's own objects."""


def _among(values: Mapping[str, pa.Array], view: TableView) -> Predicate | None:
    """A condition that rows meet which have in each column one of its values.

    The columns are whole numbers or texts; others may meet it too.
    """
    types = {field.name: field.type.to_arrow() for field in view.schema.select(tuple(values))}
    terms = [_term(name, _known(some, types[name])) for name, some in values.items()]
    return conjunction(term for term in terms if term is not None)


def narrowed(
    predicate: Predicate | None, values: Mapping[str, pa.Array], view: TableView
) -> Predicate | None:
    """A predicate that keeps fewer rows: those that have one of its values in each column.

    The columns are whole numbers or texts; other rows may be kept too.
    """
    return conjunction([*conjuncts(predicate), *conjuncts(_among(values, view))])


def among_keys(keys: pl.DataFrame, view: TableView) -> Predicate | None:
    """A condition that rows meet which have one of some keys, each column by itself."""
    fields = view.schema.select(tuple(keys.columns))
    listed = {
        f.name: keys[f.name].unique().to_arrow()
        for f in fields
        if has_one_spelling(f.type) and not keys[f.name].null_count()
    }
    return conjunction(filter(None, (key_range(keys), _among(listed, view))))


def _known(values: pa.Array, type_: pa.DataType) -> pl.Series:
    """The values that a column of a type can have."""
    wanted = pl.Series(pa.array([], type_)).dtype
    known: pl.Series = pl.Series(values).cast(wanted, strict=False).drop_nulls()
    return known


def _term(name: str, values: pl.Series) -> Predicate | None:
    if len(values) <= _LISTED_MAX:
        return In(name, tuple(values.to_list()))
    low, high = values.min(), values.max()  # without a sorted copy of them all
    return conjunction([Comparison(name, ">=", low), Comparison(name, "<=", high)])
