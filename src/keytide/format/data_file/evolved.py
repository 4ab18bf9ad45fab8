"""Converts columns of a file to those of the current schema, matched by field id at every depth."""

from __future__ import annotations

import polars as pl

from keytide.format.arrow import HAS_MAPS, polars_type
from keytide.types import ArrayType, DataType, Field, MapType, RowType

__all__ = ["evolved_column"]


def evolved_column(new: Field, old: Field | None, stored: pl.Schema) -> pl.Expr:
    """The column `new`, which the file has as `old`. NULL if it has none.

    `stored` are the columns of the file as Polars reads them.
    """
    target = polars_type(new)
    # A file may lack columns of its schema: not every writer stores all of them.
    if old is None or old.name not in stored:
        return pl.lit(None, dtype=target).alias(new.name)
    column = pl.col(old.name)
    mapped = _evolve(column, old.type, new.type)
    if mapped is not column or stored[old.name] != target:
        mapped = mapped.cast(target)
    return mapped.alias(new.name)


def _evolve(column: pl.Expr, old: DataType, new: DataType) -> pl.Expr:
    """Match members of nested rows by field id. Scalar casts are left to the caller."""
    if _has_same_members(old, new):
        return column
    if isinstance(old, RowType) and isinstance(new, RowType):
        by_id = {f.id: f for f in old.fields}
        members = [
            _evolve(column.struct.field(by_id[f.id].name), by_id[f.id].type, f.type).alias(f.name)
            if f.id in by_id
            else pl.lit(None, dtype=polars_type(f)).alias(f.name)
            for f in new.fields
        ]
        # A struct created from members would be a row of NULLs if the whole struct was NULL.
        return pl.when(column.is_not_null()).then(pl.struct(members))
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return column.list.eval(_evolve(pl.element(), old.element, new.element))
    if isinstance(old, MapType) and isinstance(new, MapType):
        key, value = pl.element().struct.field("key"), pl.element().struct.field("value")
        entry = pl.struct(
            _evolve(key, old.key, new.key).alias("key"),
            _evolve(value, old.value, new.value).alias("value"),
        )
        entries = column.map.entries() if HAS_MAPS else column
        return entries.list.eval(entry)
    return column


def _has_same_members(old: DataType, new: DataType) -> bool:
    """Whether nested rows have the same members with the same names, at every depth."""
    if isinstance(old, RowType) and isinstance(new, RowType):
        return [(f.id, f.name) for f in old.fields] == [(f.id, f.name) for f in new.fields] and all(
            _has_same_members(was.type, f.type)
            for was, f in zip(old.fields, new.fields, strict=True)
        )
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _has_same_members(old.element, new.element)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return _has_same_members(old.key, new.key) and _has_same_members(old.value, new.value)
    return True
