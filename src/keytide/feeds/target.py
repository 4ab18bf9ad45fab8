"""The target table of a feed: opened, or created from the content of the feed.

A table stores the source table and the epochs of the feed that fills it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.text import counted
from keytide.catalogs.catalog import Catalog, NewTable
from keytide.catalogs.schema_changes import alter_table
from keytide.definition.kind import require_key
from keytide.definition.schema_evolution import SetOption
from keytide.errors import InvalidError, NotFoundError
from keytide.feeds.epochs import Epoch, SequenceSource, epochs_of, extended, parse_epochs
from keytide.feeds.feed import OMITTED, FeedRequest, FeedSpec
from keytide.feeds.inference import Sample
from keytide.options import TableOptions, keys, stored_names
from keytide.snapshot.stored_table import StoredTable
from keytide.types import Field

# -- the stored origin of a feed -------------------------------------------------------------------


_EPOCHS, _SOURCE_TABLE = "user.feed-epochs", "user.feed-source-table"


@dataclass(frozen=True)
class Origin:
    """The origin of a table's rows. Rows are numbered by the epochs, so these only grow."""

    source_table: str | None = None
    epochs: tuple[Epoch, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Origin:
        """The origin in the options of a table. Raises `InvalidError` for invalid ones."""
        texts = options.get(_EPOCHS, "").split(",")
        return cls(options.get(_SOURCE_TABLE), parse_epochs(text for text in texts if text.strip()))

    @property
    def options(self) -> dict[str, str]:
        """The options of a table that store it."""
        epochs = ", ".join(epoch.text for epoch in self.epochs)
        found = {_EPOCHS: epochs, _SOURCE_TABLE: self.source_table or ""}
        return {name: value for name, value in found.items() if value}


# -- the target table ------------------------------------------------------------------------------


def feed_target(
    catalog: Catalog, request: FeedRequest, messages: pa.Array
) -> tuple[StoredTable, FeedSpec]:
    """Open or create the table of a feed, and return how its messages become rows.

    A new table has the requested columns, otherwise those in a sample of `messages`, and one more
    column for each feed field that orders changes (`sequence_by`, otherwise the format's usual
    ones). These are its sequence field. In an existing table, `sequence_by` fills its sequence
    fields, in their order. Sequence fields that are part of the rows need nothing.

    Raises `InvalidError` if the feed contains no row or no key to create a table from, for
    arguments that contradict each other, and for a table that reads row kinds from one of its
    columns.
    """
    table: StoredTable | None
    try:
        table = catalog.table(request.table)
    except NotFoundError:
        table = None
    options = stored_names(request.options) if table is None else table.schema.options
    column = TableOptions.parse(options).rowkind_field
    if column is not None:
        raise InvalidError(
            f"table {request.table}: '{keys.ROWKIND_FIELD}' reads row kinds from column "
            f"{column!r}, but each change of a feed has its own kind; use a table without the "
            "option"
        )
    known = Origin.of(options)
    epochs = extended(known.epochs, parse_epochs(request.epochs), request.table)
    sample = Sample(messages, request.format, tuple(request.sequence_by), epochs)
    origin = request.source_table or known.source_table or sample.origin()
    if table is None:
        return _create(catalog, request, sample, origin)
    require_key(table.schema, table.name, "a change feed", "Ingest into a table with a primary key")
    schema, ordering = table.schema, _sequence_sources(table, request, sample)
    spec = _feed_spec(request, schema.fields, schema.primary_keys, ordering, options, origin)
    stored = Origin(origin, epochs_of(spec.sequence)).options
    new = [SetOption(k, v) for k, v in stored.items() if options.get(k) != v]
    if new:
        alter_table(table.metadata, new)
    return table, spec


def _create(
    catalog: Catalog, request: FeedRequest, sample: Sample, origin: str | None
) -> tuple[StoredTable, FeedSpec]:
    ordering = tuple(map(sample.source, request.sequence_by)) or sample.sequence()
    options = stored_names(request.options)
    has_clocks = keys.UPSERT_MODE in options and keys.SEQUENCE_FIELD not in request.options
    if has_clocks and len(ordering) > 1:
        columns = ", ".join(source.column for source in ordering)
        raise InvalidError(
            f"table {request.table}: with '{keys.UPSERT_MODE}', several sequence fields are clocks "
            f"of several producers, but the order of the feed is {columns} together; give one "
            "field with sequence_by, such as source.lsn"
        )
    rows = sample.columns() if request.columns is None else request.columns
    key = request.primary_key or sample.primary_key()
    if not key:
        raise InvalidError(
            f"table {request.table}: the feed does not contain the primary key; give its columns"
        )
    fields = (*rows, *(source.to_field() for source in ordering))
    spec = _feed_spec(request, fields, key, ordering, options, origin)
    stored = {**Origin(origin, epochs_of(spec.sequence)).options, **request.options}
    if ordering and keys.SEQUENCE_FIELD not in stored and keys.WATERMARK_KEY not in stored:
        # Without it, the order of arrival would decide, and a file that is read late would win.
        stored[keys.SEQUENCE_FIELD] = ",".join(source.column for source in ordering)
    wanted = NewTable(fields, key, request.partition_by, stored)
    return catalog.create_table(request.table, wanted), spec


def _sequence_sources(
    table: StoredTable, request: FeedRequest, sample: Sample
) -> tuple[SequenceSource, ...]:
    """The sources of the sequence fields of an existing table.

    Fields that the format does not fill are read from the rows.
    """
    wanted = TableOptions.parse(table.schema.options).sequence_field
    given = request.sequence_by
    if not given:
        if sample.orders_by(wanted):
            return sample.sequence()
        former = sample.former(wanted)
        if former is not None:
            raise InvalidError(
                f"table {table.name} is ordered by {', '.join(wanted)}, which is not the order "
                f"of commits at the source (docs/feed-order.md). Load the feed into a new table, "
                f"or give sequence_by {former} to keep this order"
            )
        return ()
    if len(given) != len(wanted):
        raise InvalidError(
            f"table {table.name} has {counted(len(wanted), 'sequence field')} "
            f"({', '.join(wanted)}), found {counted(len(given), 'field')} of the feed to fill "
            f"them: {', '.join(given)}; give the same number, in the order of the sequence fields"
        )
    return tuple(
        SequenceSource(path, column, table.schema.field(column).type)
        for path, column in zip(given, wanted, strict=True)
    )


def feed_columns(fields: Iterable[Field]) -> tuple[Field, ...]:
    """The columns of a table that its feed fills."""
    return tuple(field for field in fields if field.name != OMITTED)


def _feed_spec(
    request: FeedRequest,
    fields: Sequence[Field],
    key: Sequence[str],
    ordering: tuple[SequenceSource, ...],
    options: Mapping[str, str],
    origin: str | None,
) -> FeedSpec:
    return FeedSpec(
        format=request.format,
        columns=feed_columns(fields),
        primary_key=tuple(key),
        sequence=ordering,
        empty_as_null=frozenset(request.empty_as_null),
        encoding=request.encoding,
        generated=frozenset(TableOptions.parse(options).generation_texts),
        source_table=origin,
    )
