"""Conditions that restrict a read to rows with given values."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from keytide.predicate.predicate import (
    Comparison,
    In,
    Predicate,
    conjunction,
    conjuncts,
)
from keytide.predicate.values.spellings import has_one_spelling
from keytide.read.lookup import key_range
from keytide.snapshot.view import TableView

__all__ = ["among_keys", "narrowed"]

_LISTED_MAX = 1 << 20
"""For more values, their range is used, because a list of them consists of Python objects."""


def _among(values: Mapping[str, pa.Array], view: TableView) -> Predicate | None:
    """A condition that is true for rows that have one of the values in each column.

    The columns are integers or strings. It can be true for other rows too.
    """
    types = {field.name: field.type.to_arrow() for field in view.schema.select(tuple(values))}
    terms = [_term(name, _known(some, types[name])) for name, some in values.items()]
    return conjunction(term for term in terms if term is not None)


def narrowed(
    predicate: Predicate | None, values: Mapping[str, pa.Array], view: TableView
) -> Predicate | None:
    """A predicate that is also restricted to rows with one of the values in each column.

    The columns are integers or strings. It can be true for other rows too.
    """
    return conjunction([*conjuncts(predicate), *conjuncts(_among(values, view))])


def among_keys(keys: pl.DataFrame, view: TableView) -> Predicate | None:
    """A condition that is true for rows with one of the keys, column by column."""
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
    low, high = values.min(), values.max()  # without a sorted copy of all values
    return conjunction([Comparison(name, ">=", low), Comparison(name, "<=", high)])
