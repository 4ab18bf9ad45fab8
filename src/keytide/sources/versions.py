"""The rows of a source as versions of keys: with the table's types, a number and a kind.

`_SEQUENCE_NUMBER` is the order of arrival, as far as the source knows it: by commit and, within a
commit, by row. `_VALUE_KIND` is -D for rows that the tombstone key marks. Readers see only merged
rows that match their condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RowKind
from keytide.errors import DataError, InvalidError
from keytide.format.arrow import from_arrow
from keytide.merge.layers import with_keys
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, VALUE_KIND
from keytide.predicate.predicate import Predicate, columns_of, row_filter
from keytide.predicate.row_expression import with_tombstones
from keytide.predicate.value_columns import key_column, stored_column
from keytide.snapshot.state import TableView
from keytide.sources.parquet import POSITION, ParquetPart, read_in_order
from keytide.sources.source import SourcePart

# -- versions of a source --------------------------------------------------------------------------


PART_SHIFT = 40
"""The number of bits for rows in a part: a trillion rows, and eight million parts."""


@dataclass(frozen=True)
class RowNumbers:
    """The `_SEQUENCE_NUMBER` of a part's rows: that of the first row, and whether they `ascend`."""

    first: int
    ascend: bool


def numbers_of(parts: Sequence[SourcePart]) -> tuple[RowNumbers, ...]:
    """The numbers of parts, which are ordered by commit.

    Each part has its own range of numbers, so that parts can be read independently. All rows of a
    commit without an order have the same number.
    """
    unordered = {part.commit for part in parts if not part.is_in_order}
    places: dict[int, int] = {}
    for place, part in enumerate(parts):
        places.setdefault(part.commit, place)
    return tuple(
        RowNumbers(places[part.commit] << PART_SHIFT, ascend=False)
        if part.commit in unordered
        else RowNumbers(place << PART_SHIFT, ascend=True)
        for place, part in enumerate(parts)
    )


def arrivals(places: pl.Series, numbers: Sequence[RowNumbers]) -> pl.Series:
    """The `_SEQUENCE_NUMBER` of versions that are identified by position.

    `numbers` are those of all parts.
    """
    found = places.to_numpy()
    part = found >> PART_SHIFT
    ascend = np.array([each.ascend for each in numbers], dtype=np.bool_)
    first = np.array([each.first for each in numbers], dtype=np.int64)
    return pl.Series(np.where(ascend[part], found, first[part]))


@dataclass(frozen=True)
class SourceVersions:
    """Versions that match a condition and, if given, have one of some keys. Can be pickled."""

    view: TableView
    parts: tuple[SourcePart, ...]
    numbers: tuple[RowNumbers, ...]
    key_condition: Predicate | None = None
    source_condition: Predicate | None = None
    """The part of the condition that has the same meaning for the source's columns."""
    keys: pl.DataFrame | None = field(default=None, compare=False)

    @property
    def are_in_order(self) -> bool:
        """Whether the order of arrival of all rows is known."""
        return all(part.is_in_order for part in self.parts)

    def frames(self, columns: Sequence[str], rows_max: int) -> Iterator[pl.DataFrame]:
        """The versions in order of arrival, about `rows_max` at a time.

        Raises as `of_parts`.
        """
        return (frame for _, frame in self.of_parts(columns, rows_max))

    def of_parts(
        self, columns: Sequence[str], rows_max: int
    ) -> Iterator[tuple[SourcePart, pl.DataFrame]]:
        """The same, each with its part.

        Raises `DataError` for data that cannot be read, and for values that the table cannot have.
        """

        def read(place: int) -> Iterator[pl.DataFrame]:
            part, numbers = self.parts[place], self.numbers[place]
            for batch, positions in _placed(part, columns, self.source_condition, rows_max):
                typed = self._typed(batch, columns, part)
                rising = pl.Series(positions) if numbers.ascend else pl.lit(0, pl.Int64)
                yield typed.with_columns((rising + numbers.first).alias(SEQUENCE_NUMBER))

        condition = self.key_condition
        for place, frame in read_in_order(self.parts, read, rows_max):
            wanted = frame if self.keys is None else with_keys(frame, self.keys)
            if condition is not None:
                fields = self.view.schema.select(sorted(columns_of(condition)))
                wanted = wanted.filter(row_filter(condition, fields))
            yield self.parts[place], wanted

    def some(self, places: Sequence[int]) -> SourceVersions:
        """The versions of some parts, with the same numbers as among all parts."""
        parts = tuple(self.parts[place] for place in places)
        return replace(self, parts=parts, numbers=tuple(self.numbers[place] for place in places))

    def by_place(self) -> SourceVersions:
        """The same with numbers for positions instead of the order of arrival.

        See `arrivals`.
        """
        places = (RowNumbers(n << PART_SHIFT, ascend=True) for n in range(len(self.parts)))
        return replace(self, numbers=tuple(places))

    def _typed(
        self, batch: pa.RecordBatch, columns: Sequence[str], part: SourcePart
    ) -> pl.DataFrame:
        """A batch in the table's types, with row kinds."""
        schema, table = self.view.schema, self.view.name
        given = dict(zip(columns, pa.Table.from_batches([batch]).columns, strict=True))
        try:
            typed = {
                name: (key_column if name in schema.primary_keys else stored_column)(
                    column, schema.field(name), table
                )
                for name, column in given.items()
            }
        except InvalidError as error:
            raise DataError(
                f"{error}; found in {part}. This is an external table: refresh the definition, "
                "or define the table with suitable types"
            ) from error
        kinds = pa.chunked_array([np.full(batch.num_rows, int(RowKind.INSERT), np.int8)])
        if self.view.options.tombstone_key:
            kinds = with_tombstones(kinds, typed, schema, self.view.options)
        return from_arrow(pa.table({**typed, VALUE_KIND: kinds}))


def _placed(
    part: SourcePart, columns: Sequence[str], asked: Predicate | None, rows_max: int
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """The rows of a part with their positions: in the file, or in the order of the result."""
    if isinstance(part, ParquetPart):
        for batch in part.placed_batches(columns, asked, rows_max):
            yield batch.select(list(columns)), batch.column(POSITION)
        return
    seen = 0
    for batch in part.batches(columns, asked, rows_max):
        yield batch, pa.array(np.arange(seen, seen + batch.num_rows))
        seen += batch.num_rows


# -- rows that readers see -------------------------------------------------------------------------


@dataclass(frozen=True)
class VisibleRows:
    """Some columns of rows that are not deleted and match a condition. Can be pickled."""

    view: TableView
    columns: tuple[str, ...]
    condition: Predicate | None = None

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The visible rows. Raises `DataError` for NULL in a NOT NULL column of the definition."""
        live = rows.filter(IS_ADD)
        if self._check is not None:
            live = live.filter(self._check)

        for column in self.view.schema.select(self.columns):
            if not column.type.nullable and live[column.name].null_count():
                raise DataError(
                    f"table {self.view.name}: column {column.name!r} is {column.type.sql()} in its "
                    "definition, but a row has NULL; define the column without NOT NULL, or "
                    "correct the row in the source"
                )
        return live.select(self.columns)

    @cached_property
    def _check(self) -> pl.Expr | None:
        if self.condition is None:
            return None
        return row_filter(
            self.condition, self.view.schema.select(sorted(columns_of(self.condition)))
        )
