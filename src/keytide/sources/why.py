"""Explains the row of a key: its versions in the source, and the effect of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from keytide.base.row_kind import RowKind
from keytide.base.scratch import scratch
from keytide.format.arrow import polars_schema, to_arrow
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND
from keytide.merge.outcomes import outcomes
from keytide.merge.provenance import VERSION, provenance_of
from keytide.read.scans import key_condition, key_values_of
from keytide.read.why import Why, versions_schema
from keytide.sources.merging import Merging, split_condition
from keytide.sources.pinned import PinnedExternal
from keytide.sources.scan import get_external

__all__ = ["why_external"]

_FILE = scratch("file")


def why_external(table: PinnedExternal, key: Mapping[str, Any] | Any) -> Why:
    """Every version of a key in the source, in merge order, with its effect.

    Rows without an order all have the number 0. Raises as a scan does.
    """
    schema = table.view.schema
    condition = key_condition(key, schema, table.name)
    about_key, _ = split_condition(condition, schema.primary_keys)
    merging = Merging(table.versions(about_key), schema.names, compares_rows=True)
    values = [name for name in schema.names if name not in schema.primary_keys]
    versions = merging.order.sort(_versions(merging)).with_row_index(VERSION, 1)
    versions = versions.with_columns(pl.col(VERSION).cast(pl.Int64))
    provenance = provenance_of(versions, merging.order, merging.engine)
    told = outcomes(versions, provenance, merging.order, merging.engine, values)
    return Why(
        table=table.name,
        key=key_values_of(key, schema, table.name),
        snapshot_id=None,
        merge_engine=table.view.options.merge_engine,
        versions=_as_rows(versions, told, table),
        row=get_external(table, key),
        taken={n: provenance.taken.get(n, ()) if provenance.row.height else () for n in values},
    )


def _versions(merging: Merging) -> pl.DataFrame:
    names = merging.view.schema.names
    found = [
        frame.with_columns(pl.lit(str(part)).alias(_FILE))
        for part, frame in merging.versions.of_parts(names, _ROWS)
    ]
    types = polars_schema(merging.view.schema.fields)
    others = {VALUE_KIND: pl.Int8, SEQUENCE_NUMBER: pl.Int64, _FILE: pl.String}
    return pl.concat([pl.DataFrame(schema={**types, **others}), *found])


_ROWS = 1 << 18


def _as_rows(versions: pl.DataFrame, told: list[str], table: PinnedExternal) -> Any:
    """The versions in the format of `Why.versions`. Files have no level and no schema id."""
    schema = versions_schema(table.view.schema.fields)
    kinds = [RowKind(kind).short for kind in versions[VALUE_KIND]]
    system = [
        versions[VERSION], versions[_FILE], pl.Series([None] * versions.height, dtype=pl.Int32),
        pl.Series([None] * versions.height, dtype=pl.Int64), versions[SEQUENCE_NUMBER],
        pl.Series(kinds, dtype=pl.String),
    ]  # fmt: skip
    own = [versions[name] for name in table.view.schema.names]
    columns = [*system, *own, pl.Series(told, dtype=pl.String)]
    frame = pl.DataFrame([c.alias(n) for c, n in zip(columns, schema.names, strict=True)])
    return to_arrow(frame, schema)
