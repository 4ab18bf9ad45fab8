"""The table that a feed goes into: opened, or made from what the feed says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from keytide.cdc.feed import FeedSpec, SequenceSource
from keytide.cdc.infer import default_sequence, infer_columns, infer_primary_key, sequence_source
from keytide.errors import InvalidError, NotFoundError
from keytide.options import TableOptions, keys, stored_names
from keytide.table.catalog import Catalog
from keytide.table.state.stored import StoredTable
from keytide.types import Field

__all__ = ["feed_target"]


def feed_target(
    catalog: Catalog,
    name: str,
    sample: pa.Array,
    format: str,
    *,
    columns: Sequence[Field] | None = None,
    primary_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    sequence_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    empty_as_null: Sequence[str] = (),
) -> tuple[StoredTable, FeedSpec]:
    """Open or make the table of a feed, and say how its messages become rows.

    A new table has the `columns`, else those that the `sample` of messages shows, and one more
    for each feed member that orders changes (`sequence_by`, else what the format is known for);
    these are its sequence field. In a table that exists, `sequence_by` fills its sequence fields,
    in their order; sequence fields that the rows bring themselves need nothing.

    Raises `InvalidError` when the feed shows no row or no key to make a table from, when the parts
    do not go together, and for a table that takes kinds of rows from one of its columns.
    """
    try:
        table = catalog.table(name)
    except NotFoundError:
        table = None
    _refuse_rowkind_field(name, table.schema.options if table else stored_names(options or {}))
    if table is not None:
        spec = _spec_of(table, sample, format, sequence_by, empty_as_null)
        return table, spec
    ordering = _ordering(sample, format, sequence_by)
    rows = tuple(columns) if columns is not None else infer_columns(sample, format)
    key = tuple(primary_key) or infer_primary_key(sample, format)
    if not key:
        raise InvalidError(
            f"table {name}: the feed does not say which columns are the primary key; name them"
        )
    stored = dict(options or {})
    if ordering and keys.SEQUENCE_FIELD not in stored and keys.WATERMARK_KEY not in stored:
        stored[keys.SEQUENCE_FIELD] = ",".join(source.column for source in ordering)
    fields = (*rows, *(source.to_field() for source in ordering))
    spec = _feed_spec(format, fields, key, ordering, empty_as_null)
    table = catalog.create_table(name, fields, key, partition_by, stored)
    return table, spec


def _refuse_rowkind_field(name: str, options: Mapping[str, str]) -> None:
    column = TableOptions.parse(options).rowkind_field
    if column is not None:
        raise InvalidError(
            f"table {name}: '{keys.ROWKIND_FIELD}' takes the kinds of rows from column {column!r}, "
            "and a feed says itself what each change does; use a table without the option"
        )


def _spec_of(
    table: StoredTable,
    sample: pa.Array,
    format: str,
    sequence_by: Sequence[str],
    empty_as_null: Sequence[str],
) -> FeedSpec:
    schema = table.schema
    wanted = TableOptions.parse(schema.options).sequence_field
    if sequence_by:
        if len(sequence_by) != len(wanted):
            raise InvalidError(
                f"table {table.name} has the sequence field {', '.join(wanted) or '(none)'}, found "
                f"{len(sequence_by)} member(s) to fill it: {', '.join(sequence_by)}"
            )
        pairs = zip(sequence_by, wanted, strict=True)
        ordering = tuple(
            SequenceSource(path, column, schema.field(column).type) for path, column in pairs
        )
    else:
        known = default_sequence(sample, format) if wanted else ()
        ordering = tuple(source for source in known if source.column in wanted)
    return _feed_spec(format, schema.fields, schema.primary_keys, ordering, empty_as_null)


def _ordering(
    sample: pa.Array, format: str, sequence_by: Sequence[str]
) -> tuple[SequenceSource, ...]:
    if not sequence_by:
        return default_sequence(sample, format)
    return tuple(sequence_source(sample, format, path) for path in sequence_by)


def _feed_spec(
    format: str,
    fields: Sequence[Field],
    key: Sequence[str],
    ordering: tuple[SequenceSource, ...],
    empty_as_null: Sequence[str],
) -> FeedSpec:
    return FeedSpec(
        format=format,
        columns=tuple(fields),
        primary_key=tuple(key),
        sequence=ordering,
        empty_as_null=frozenset(empty_as_null),
    )
