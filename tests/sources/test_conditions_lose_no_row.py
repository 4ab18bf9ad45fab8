"""Conditions on the key leave out files, row groups and rows, and none of a row that meets them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("adbc_driver_sqlite")

import adbc_driver_sqlite.dbapi as sqlite
import deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from iceberg_tables import create
from keytide.predicate.predicate import (
    Comparison,
    In,
    IsNull,
    Like,
    Predicate,
    conjunction,
    disjunction,
    negation,
    row_filter,
)
from keytide.sources import database, delta, iceberg
from keytide.sources.source import PinnedSource
from keytide.types import Field, type_from_arrow
from sources import all_rows, counted, place

VALUES: dict[str, list[Any]] = {
    "i": [-1, 0, 3, 2**40],
    "s": ["", "a", "ab", "é"],
    "d": [date(1969, 12, 31), date(2020, 2, 29)],
    "t": [-1, 0, 1_500, 2_000_000],
    "m": [Decimal("-1.50"), Decimal("0.00"), Decimal("9.99")],
    "f": [-1.5, -0.0, 2.0, float("nan")],
}
TYPES = {
    "i": pa.int64(), "s": pa.string(), "d": pa.date32(), "t": pa.timestamp("us"),
    "m": pa.decimal128(9, 2), "f": pa.float64(),
}  # fmt: skip
SCHEMA = pa.schema(list(TYPES.items()))
FIELDS = [Field(i, name, type_from_arrow(type_)) for i, (name, type_) in enumerate(TYPES.items())]


def new_rows(start: int) -> pa.Table:
    """Three rows, whose columns take their values in turn, and now and then none."""

    def column(name: str, step: int) -> pa.Array:
        values = [*VALUES[name], None]
        return pa.array([values[(start + i * step) % len(values)] for i in range(3)], TYPES[name])

    return pa.table([column(name, step) for step, name in enumerate(TYPES)], schema=SCHEMA)


FILES = [new_rows(start) for start in range(7)]
ALL = pa.concat_tables(FILES)


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> list[PinnedSource]:
    folder = tmp_path_factory.mktemp("others")
    return [delta_table(folder), iceberg_table(folder), database_table(folder)]


def delta_table(folder: Path) -> PinnedSource:
    for file in FILES:
        deltalake.write_deltalake(str(folder / "t"), file, mode="append")
    return delta.open_source(place(folder / "t")).pin()


def iceberg_table(folder: Path) -> PinnedSource:
    table = create(folder, SCHEMA)
    for file in FILES:
        table.append(file)
    return iceberg.open_source(place(table.location())).pin()


def database_table(folder: Path) -> PinnedSource:
    """SQLite keeps neither NaN nor a zero with a sign."""
    with sqlite.connect(str(folder / "b.db"), autocommit=True) as base, base.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE t (i BIGINT, s TEXT, d DATE, t TIMESTAMP, m DECIMAL(9, 2), f DOUBLE)"
        )
    from keytide.sources.appends import open_database_appender

    opened = place(folder / "b.db", {"table": "t"})
    open_database_appender(opened).append(without_nan(ALL), [])
    return database.open_source(opened).pin()


def without_nan(table: pa.Table) -> pa.Table:
    f = pl.col("f")
    plain = pl.when(f.is_nan()).then(7.0).when(f == 0).then(0.0).otherwise(f)
    frame = pl.DataFrame(table.select(["f"])).select(plain.alias("f"))
    return table.set_column(5, SCHEMA.field("f"), pa.chunked_array([frame.to_series().to_arrow()]))


def terms(name: str) -> st.SearchStrategy[Predicate]:
    value = st.sampled_from(VALUES[name])
    operator = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
    some = [
        st.builds(Comparison, st.just(name), operator, value),
        st.builds(In, st.just(name), st.lists(value, max_size=3).map(tuple)),
        st.just(IsNull(name)),
    ]
    if name == "s":
        some.append(st.builds(Like, st.just(name), st.sampled_from(["a%", "%b", "_", "é%"])))
    return st.one_of(some)


def joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(several.map(conjunction), several.map(disjunction), inner.map(negation))


PREDICATES = st.recursive(st.one_of(*map(terms, TYPES)), joined, max_leaves=5)


@pytest.mark.one_in(14)
@settings(max_examples=40, deadline=None)
@given(about_key=PREDICATES)
def test_rows_are_those_that_meet_the_condition(
    pins: list[PinnedSource], about_key: Predicate
) -> None:
    for pinned in pins:
        is_database = pinned.version is None
        there = without_nan(ALL) if is_database else ALL
        frame = pl.DataFrame(there)
        expected = frame.filter(row_filter(about_key, FIELDS)).to_arrow().cast(SCHEMA)
        assert counted(all_rows(pinned, about_key)) == counted(expected.to_pylist())
