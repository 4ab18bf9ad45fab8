"""Recognizes VARIANT values that a file stores in parts."""

from __future__ import annotations

import polars as pl

from keytide.types import ArrayType, AtomicType, DataType, MapType, MultisetType, RowType

__all__ = ["has_variant", "is_shredded"]

_PARTS = "typed_value"


def has_variant(type_: DataType) -> bool:
    """Whether values of a type contain a VARIANT."""
    if isinstance(type_, AtomicType):
        return type_.root == "VARIANT"
    if isinstance(type_, ArrayType | MultisetType):
        return has_variant(type_.element)
    if isinstance(type_, MapType):
        return has_variant(type_.key) or has_variant(type_.value)
    return isinstance(type_, RowType) and any(has_variant(f.type) for f in type_.fields)


def is_shredded(stored: pl.DataType) -> bool:
    """Whether a stored column has a VARIANT of which parts are in columns of their own."""
    if isinstance(stored, pl.Struct):
        if {"metadata", _PARTS} <= {field.name for field in stored.fields}:
            return True
        inner = [field.dtype for field in stored.fields]
    else:
        inner = [stored.inner] if isinstance(stored, pl.List) else []
    return any(isinstance(each, pl.DataType) and is_shredded(each) for each in inner)
