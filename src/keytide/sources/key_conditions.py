"""Conditions on the primary key, evaluated on rows and on file bounds of other engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from keytide.format.arrow import from_arrow
from keytide.predicate.matching import may_match, row_filter
from keytide.predicate.predicate import Predicate, columns_of, without_columns
from keytide.types import Field, type_from_arrow

__all__ = ["asked_of_source", "bounds_table", "rows_that_meet", "which_may_meet"]


def asked_of_source(
    about_key: Predicate | None, fields: Sequence[Field], schema: pa.Schema
) -> Predicate | None:
    """The terms of a condition on a table that have the same meaning in the source.

    A definition can give a column another type than the source, with other time units or without
    trailing blanks. Rows that match these terms must still be checked against the condition.
    """
    differing = [
        field.name
        for field in fields
        if field.type.root == "CHAR" or schema.field(field.name).type != field.type.to_arrow()
    ]
    return without_columns(about_key, differing)


def rows_that_meet(
    batches: Iterator[pa.RecordBatch], about_key: Predicate | None
) -> Iterator[pa.RecordBatch]:
    """The rows that match a condition, without empty batches. All rows if a column is missing."""
    names = sorted(columns_of(about_key))
    for batch in batches:
        if about_key is None or not set(names) <= set(batch.schema.names):
            kept = batch
        else:
            keys = batch.select(names)
            chosen = from_arrow(pa.Table.from_batches([keys])).select(
                row_filter(about_key, _fields(keys.schema)).fill_null(value=False).alias("kept")
            )
            kept = batch.filter(chosen.to_series().to_arrow())
        if kept.num_rows:
            yield kept


def which_may_meet(bounds: pa.Table, about_key: Predicate, schema: pa.Schema) -> Sequence[bool]:
    """For each file, whether one of its rows can match a condition.

    `bounds` has one row per file: `rows`, and for columns `<name>.min`, `<name>.max` and
    `<name>.nulls`, each NULL if unknown. Floats have no bounds, because bounds do not include NaN.
    """
    fields = _fields(pa.schema([schema.field(name) for name in sorted(columns_of(about_key))]))
    may = may_match(about_key, fields)  # may be a single answer for all files
    return from_arrow(bounds).with_columns(may.alias("may"))["may"].to_list()


def bounds_table(schema: pa.Schema, names: Sequence[str], files: int) -> dict[str, pa.Array]:
    """Unknown bounds for a number of files."""
    made: dict[str, pa.Array] = {"rows": pa.nulls(files, pa.int64())}
    for name in names:
        made[f"{name}.min"] = made[f"{name}.max"] = pa.nulls(files, schema.field(name).type)
        made[f"{name}.nulls"] = pa.nulls(files, pa.int64())
    return made


def _fields(schema: pa.Schema) -> list[Field]:
    return [Field(-1, field.name, type_from_arrow(field.type)) for field in schema]
