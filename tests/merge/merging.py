"""Merge engines at work on rows written as tuples: kind first, then the columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from datasketches import compact_theta_sketch, hll_sketch
from pyroaring import BitMap

from json_values import arrow_table
from keytide.base.row_kind import RowKind
from keytide.format.arrow import from_arrow
from keytide.merge.engine import MergeEngine
from keytide.merge.engines import engine_of
from keytide.merge.functions.user import MergeFunction
from keytide.merge.layers import layers
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, VALUE_KIND, MergeOrder, order_of
from keytide.options import TableOptions
from keytide.types import Field, RowType, parse_sql_type

Row = Sequence[Any]
# By the third byte, which says of what family a sketch is.
SKETCHES = {b"\x03": compact_theta_sketch.deserialize, b"\x07": hll_sketch.deserialize}


def columns_of(text: str) -> tuple[Field, ...]:
    """The columns of SQL text such as 'k INT NOT NULL, v STRING'."""
    row = parse_sql_type(f"ROW<{text}>")
    assert isinstance(row, RowType)
    return row.fields


@dataclass(frozen=True)
class Merging:
    """A table's order and engine, and the ways in which rows can reach it."""

    fields: tuple[Field, ...]
    order: MergeOrder
    engine: MergeEngine

    @classmethod
    def of(
        cls,
        columns: str | Sequence[Field],
        options: Mapping[str, str],
        key: Sequence[str] = ("k",),
        partition_keys: Sequence[str] = (),
        functions: Mapping[str, MergeFunction] | None = None,
    ) -> Merging:
        fields = columns_of(columns) if isinstance(columns, str) else tuple(columns)
        parsed = TableOptions.parse(options)
        order = order_of(tuple(key), fields, parsed)
        engine = engine_of(
            order, fields, parsed, partition_keys=tuple(partition_keys), functions=functions or {}
        )
        return cls(fields, order, engine)

    def versions(self, rows: Iterable[Row], first_sequence_number: int = 0) -> pl.DataFrame:
        """Rows as they come from a writer, numbered in the order given."""
        rows = list(rows)
        names = [f.name for f in self.fields]
        table = arrow_table([row[1:] for row in rows], names, [f.type for f in self.fields])
        kinds = [RowKind.parse(row[0]) for row in rows]
        return from_arrow(table).with_columns(
            pl.int_range(first_sequence_number, pl.len() + first_sequence_number, dtype=pl.Int64)
            .alias(SEQUENCE_NUMBER),
            pl.Series(VALUE_KIND, kinds, dtype=pl.Int8),
        )  # fmt: skip

    def merge(self, versions: pl.DataFrame) -> pl.DataFrame:
        """One sorting, one merge."""
        merged = self.engine.merge(self.order.sort(versions))
        assert merged.schema == versions.schema
        assert not merged.select(self.order.key).is_duplicated().any()
        return merged

    def at_once(self, rows: Iterable[Row]) -> pl.DataFrame:
        return self.merge(self.versions(rows))

    def from_the_oldest(self, rows: Iterable[Row]) -> pl.DataFrame:
        """Each row merged with what the rows before it became."""
        versions = self.versions(rows)
        merged = versions.clear()
        for position in range(versions.height):
            merged = self.merge(pl.concat([merged, versions[position : position + 1]]))
        return merged

    def run_by_run(self, rows: Iterable[Row], lengths: Iterable[int]) -> pl.DataFrame:
        """Runs of the given lengths, each merged by itself, then merged together."""
        versions = self.versions(rows)
        runs, start = [versions.clear()], 0
        for length in (*lengths, versions.height):
            runs.append(self.merge(versions[start : start + length]))
            start = min(start + length, versions.height)
        return self.merge(pl.concat(runs))

    def write_by_write(self, rows: Iterable[Row], lengths: Iterable[int]) -> pl.DataFrame:
        """What writes of the given lengths store, as layers, merged together."""
        versions = self.versions(rows)
        stored, start = [versions.clear()], 0
        for length in (*lengths, versions.height):
            written = self.order.sort(versions[start : start + length])
            for layer in layers(written, self.engine, self.order.key):
                assert not layer.select(self.order.key).is_duplicated().any()
                number = pl.lit(len(stored), dtype=pl.Int64).alias(SEQUENCE_NUMBER)
                stored.append(layer.with_columns(number))
            start = min(start + length, versions.height)
        return self.merge(pl.concat(stored))

    def rows(self, merged: pl.DataFrame) -> list[tuple[Any, ...]]:
        """The rows of a frame, kind first, as they were written."""
        kinds = [RowKind(kind).short for kind in merged[VALUE_KIND]]
        values = merged.select(f.name for f in self.fields).rows()
        return [(kind, *row) for kind, row in zip(kinds, values, strict=True)]

    def visible(self, merged: pl.DataFrame) -> list[tuple[Any, ...]]:
        """What a reader sees, lists taken for bags."""
        rows = merged.filter(IS_ADD).select(f.name for f in self.fields).rows()
        return [tuple(map(without_order, row)) for row in rows]


def without_order(value: Any) -> Any:
    """Lists sorted, so that they compare as bags; NaN and signed zeros compare by their text.

    32-bit bitmaps, which start with a cookie, compare by their members, sketches by estimates.
    """
    if isinstance(value, bytes) and value[:1] in (b":", b";"):
        return list(BitMap.deserialize(value))
    if isinstance(value, bytes) and value[2:3] in SKETCHES:
        return SKETCHES[value[2:3]](value).get_estimate()
    if isinstance(value, list):
        return sorted((without_order(item) for item in value), key=repr)
    if isinstance(value, dict):
        return sorted(((k, without_order(v)) for k, v in value.items()), key=repr)
    return repr(value) if isinstance(value, float) else value
