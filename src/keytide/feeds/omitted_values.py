"""Values that a source omitted, filled from the version of the key before them.

In a table with the column `OMITTED`, each row stores where its omitted values come from: the place
of the version that had the value, or of the delete after which none did. So a version or a delete
that arrives late changes exactly what it would have changed on time, and the rows do not depend on
order or batches. A table gets the column when the first change omits a value.
From then on, each batch reads the stored rows of its keys.

The rows are computed over frames.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.catalogs.local_writes import extended_table
from keytide.commit.change import Author
from keytide.definition.schema_evolution import AddColumn, ChangeColumnNullability, SchemaChange
from keytide.feeds.feed import OMITTED, UNAVAILABLE_COLUMN
from keytide.format.data_file import VALUE_KIND
from keytide.format.schema import TableSchema
from keytide.merge.order import IS_ADD, MergeOrder
from keytide.options import TableOptions
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import PinnedTable
from keytide.types import STRING, ArrayType, AtomicType, Field, RowType

# -- values with a stored origin -------------------------------------------------------------------


_NAME, _IS_KNOWN = "name", "is_known"
_AT, _ROW, _SOURCE, _IS_MAIN, _GIVES, _DEAD, _VALUE = map(
    scratch, ("at", "row", "source", "main", "gives", "dead", "value")
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

    def stored_columns(self, events: pl.DataFrame) -> Sequence[str]:
        """All columns."""
        return self.columns

    def changed(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """See `Kernel`. Stored rows are written again if an event changes where their values come
        from.
        """
        kind = pl.when(IS_ADD).then(int(RowKind.INSERT)).otherwise(int(RowKind.DELETE))
        before = stored.with_columns(
            pl.lit(-1, dtype=pl.Int64).alias(_ROW), kind.cast(pl.Int8).alias(VALUE_KIND)
        )
        arrived = events.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_ROW))
        versions = pl.concat([before, arrived], how="diagonal")
        found = fill_omitted(versions, self.order, self.columns)
        return found.select(events.columns)


def fill_omitted(versions: pl.DataFrame, order: MergeOrder, columns: Sequence[str]) -> pl.DataFrame:
    """Events with their omitted values filled, and the stored rows that change by them.

    `versions` are stored rows, then events in order of arrival, with the columns of the table, the
    value kind and `_ROW`. Events list their omitted columns in `UNAVAILABLE_COLUMN`, stored rows in
    `OMITTED`.
    """
    stored_names = pl.col(OMITTED).list.eval(pl.element().struct.field(_NAME))
    left_out = pl.when(pl.col(_ROW) < 0).then(stored_names).otherwise(pl.col(UNAVAILABLE_COLUMN))
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
    return result.filter((pl.col(_ROW) >= 0) | pl.lit(differs)).drop(_SOURCE, _DEAD, _AT)


def _filled(marked: pl.DataFrame, order: MergeOrder, name: str) -> pl.DataFrame:
    """The value of one column and its entry in `OMITTED` for each version, in their order."""
    is_omitted = pl.col(_SOURCE).list.contains(name)
    base = marked.select(
        *order.columns,
        pl.col(name).alias(_VALUE),
        _AT,
        _ROW,
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
    stored = marked.filter((pl.col(_ROW) < 0) & pl.col(OMITTED).list.len().gt(0))
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
        _ROW,
        pl.lit(value=False).alias(_IS_MAIN),
        entry.field(_IS_KNOWN).alias(_GIVES),
        ended.alias(_DEAD),
    )


# -- tables with the column `OMITTED` --------------------------------------------------------------


def omitted_names(rows: pa.Table) -> list[str]:
    """The columns that some changes omit. REQUIRES: they have the column for it."""
    lists = rows[UNAVAILABLE_COLUMN]
    if not pa.types.is_list(lists.type) or not pa.types.is_string(lists.type.value_type):
        return []
    return sorted(name for name in pc.unique(pc.list_flatten(lists)).to_pylist() if name)


def with_omitted_column(
    pinned: PinnedTable, names: Collection[str], author: Author | None = None
) -> PinnedTable:
    """The table with the column `OMITTED`, in which the named columns can be NULL.

    A value of a NOT NULL column is unknown until its version arrives. Raises what `extended_table`
    raises.
    """
    if not names:
        return pinned
    return extended_table(pinned, partial(_storing, names=names), author=author)


def has_omitted_column(view: TableView) -> bool:
    """Whether a table can store which values of its rows were omitted.

    It must keep the latest row of each key. Other engines merge values in their own ways.
    """
    options = view.options
    keeps_latest = options.merge_engine == TableOptions.parse({}).merge_engine
    return keeps_latest and not view.kind.has_key_index


def _storing(schema: TableSchema, names: Collection[str]) -> list[SchemaChange]:
    changes: list[SchemaChange] = []
    if OMITTED not in schema.by_name:
        sequence = TableOptions.parse(schema.options).sequence_field
        field = omitted_field(schema, sequence)
        changes.append(AddColumn((field.name,), field.type))
    for name in names:
        field_ = schema.by_name.get(name)
        if field_ is not None and not field_.type.nullable and name not in schema.primary_keys:
            changes.append(ChangeColumnNullability((name,), nullable=True))
    return changes
