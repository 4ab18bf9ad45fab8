"""Values that a source omitted, filled from the version of the key before them.

Each row stores where its omitted values come from: the place of the version that had the value, or
of the delete after which none did. So a version or a delete that arrives late changes exactly what
it would have changed on time, and the rows do not depend on order or batches. A pure computation
over frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.feeds.feed import UNAVAILABLE_COLUMN
from keytide.format.data_file import VALUE_KIND
from keytide.format.schema import TableSchema
from keytide.merge.order import IS_ADD, MergeOrder
from keytide.types import STRING, ArrayType, AtomicType, Field, RowType

# -- values that a source omitted, filled from the version of the key before them ------------------


OMITTED = "_omitted"
"""The column of tables that lists the omitted values of a row, NULL without any."""

ROW = scratch("row")
"""The column that numbers versions: -1 for stored rows, otherwise the order of arrival."""

_NAME, _IS_KNOWN = "name", "is_known"
_AT, _SOURCE, _IS_MAIN, _GIVES, _DEAD, _VALUE = map(
    scratch, ("at", "source", "main", "gives", "dead", "value")
)


def omitted_field(schema: TableSchema, sequence: Sequence[str]) -> Field:
    """The column `OMITTED` of a table whose versions are ordered by some fields.

    An entry has the column's name, whether its value is known, and the place it comes from.
    """
    place = (Field(-1, n, schema.field(n).type.with_nullable(True)) for n in sequence)
    known = Field(-1, _IS_KNOWN, AtomicType("BOOLEAN"))
    return Field(-1, OMITTED, ArrayType(RowType((Field(-1, _NAME, STRING), known, *place))))


@dataclass(frozen=True)
class OmittedValues:
    """The rows of events in a table with the column `OMITTED`. Can be pickled."""

    order: MergeOrder
    columns: tuple[str, ...]

    @property
    def given(self) -> tuple[str, ...]:
        """The columns of events."""
        return tuple(name for name in self.columns if name != OMITTED)

    def changed(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """The rows to write to apply events, in order of arrival. Stored rows are added if an
        event changes where their values come from.
        """
        versions = pl.concat(
            [
                stored.select(*self.columns, VALUE_KIND).with_columns(
                    pl.lit(-1, dtype=pl.Int64).alias(ROW)
                ),
                events.select(*self.columns, VALUE_KIND).with_columns(
                    pl.int_range(pl.len(), dtype=pl.Int64).alias(ROW)
                ),
            ]
        )
        found = fill_omitted(versions, self.order, self.columns)
        kind = pl.when(IS_ADD).then(int(RowKind.INSERT)).otherwise(int(RowKind.DELETE))
        return found.select(*self.columns, kind.cast(pl.Int8).alias(VALUE_KIND))


def fill_omitted(versions: pl.DataFrame, order: MergeOrder, columns: Sequence[str]) -> pl.DataFrame:
    """Events with their omitted values filled, and the stored rows that change by them.

    `versions` are stored rows, then events in order of arrival, with the columns of the table, the
    value kind and `ROW`. Events list their omitted columns in `UNAVAILABLE_COLUMN`, stored rows in
    `OMITTED`.
    """
    stored_names = pl.col(OMITTED).list.eval(pl.element().struct.field(_NAME))
    left_out = pl.when(pl.col(ROW) < 0).then(stored_names).otherwise(pl.col(UNAVAILABLE_COLUMN))
    left_out = left_out.fill_null([])
    marked = versions.with_columns(
        left_out.alias(_SOURCE), (~IS_ADD).alias(_DEAD), pl.int_range(pl.len()).alias(_AT)
    )
    fixed = {*order.key, *order.sequence, OMITTED, UNAVAILABLE_COLUMN}
    names = [n for n in marked[_SOURCE].explode().drop_nulls().unique().sort() if n not in fixed]
    names = [name for name in names if name in columns]
    entries = []
    for name in names:
        filled = _filled(marked, order, name)
        marked = marked.with_columns(filled[_VALUE].alias(name))
        entries.append(filled[OMITTED].alias(scratch(f"of_{name}")))

    # The column `OMITTED`, NULL for a row without omitted values.
    empty = pl.Series(OMITTED, [None] * marked.height, dtype=marked.schema[OMITTED])
    if not entries:
        made = empty
    else:
        frame = pl.DataFrame(entries)
        lists = frame.select(pl.concat_list(pl.all()).list.drop_nulls().alias(OMITTED)).to_series()
        lists = lists.cast(marked.schema[OMITTED])
        made = pl.select(pl.when(lists.list.len() > 0).then(lists)).to_series().alias(OMITTED)
    was = versions.with_columns(pl.int_range(pl.len()).alias(_AT))
    differs = (made != versions[OMITTED]).fill_null(value=True) & ~(
        made.is_null() & versions[OMITTED].is_null()
    )
    for name in names:
        differs |= marked[name].ne_missing(was[name])
    result = marked.with_columns(made.alias(OMITTED))
    return result.filter((pl.col(ROW) >= 0) | pl.lit(differs)).drop(_SOURCE, _DEAD, _AT)


def _filled(marked: pl.DataFrame, order: MergeOrder, name: str) -> pl.DataFrame:
    """The value of one column and its entry in `OMITTED` for each version, in their order."""
    is_omitted = pl.col(_SOURCE).list.contains(name)
    base = marked.select(
        *order.columns,
        pl.col(name).alias(_VALUE),
        _AT,
        ROW,
        pl.lit(value=True).alias(_IS_MAIN),
        is_omitted.alias(_GIVES),
        _DEAD,
    ).with_columns(~pl.col(_GIVES) & ~pl.col(_DEAD))
    history = pl.concat([_origins(marked, order, name), base])
    history = order.sort(history, arrival_decides=True)
    ends = pl.col(_GIVES) | pl.col(_DEAD)
    history = history.with_columns(pl.when(ends).then(pl.int_range(pl.len())).alias(_SOURCE))
    history = history.with_columns(pl.col(_SOURCE).forward_fill().over(list(order.key)))
    is_known = history[_GIVES].gather(history[_SOURCE])
    entry = pl.struct(
        pl.lit(name).alias(_NAME),
        is_known.fill_null(value=False).alias(_IS_KNOWN),
        *(history[n].gather(history[_SOURCE]).alias(n) for n in order.sequence),
    )
    needs = ~pl.col(_GIVES) & ~pl.col(_DEAD)
    value = history[_VALUE].gather(history[_SOURCE])
    known = pl.lit(is_known.fill_null(value=False))
    result = history.select(
        _AT,
        _IS_MAIN,
        pl.when(~needs).then(_VALUE).when(known).then(pl.lit(value)).alias(_VALUE),
        pl.when(needs).then(entry).alias(OMITTED),
    )
    return result.filter(_IS_MAIN).sort(_AT)


def _origins(marked: pl.DataFrame, order: MergeOrder, name: str) -> pl.DataFrame:
    """The versions that stored rows have one omitted value from, as versions of their own."""
    stored = marked.filter((pl.col(ROW) < 0) & pl.col(OMITTED).list.len().gt(0))
    exploded = stored.explode(OMITTED)
    entry = pl.col(OMITTED).struct
    exploded = exploded.filter(entry.field(_NAME) == name)
    # A value that is unknown, and that no delete ended, comes from nowhere.
    ended = ~entry.field(_IS_KNOWN) & pl.any_horizontal(
        pl.lit(value=False), *(entry.field(n).is_not_null() for n in order.sequence)
    )
    return exploded.select(
        *order.key,
        *(entry.field(n).alias(n) for n in order.sequence),
        pl.col(name).alias(_VALUE),
        _AT,
        ROW,
        pl.lit(value=False).alias(_IS_MAIN),
        entry.field(_IS_KNOWN).alias(_GIVES),
        ended.alias(_DEAD),
    )
