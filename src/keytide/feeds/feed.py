"""A feed: its definition, its request and its report.

- A format is an :class:`Envelope`: SQL expressions that find the operation and the before and after
  images of the rows in one JSON document. Everything else is the same for every format and is in
  :mod:`keytide.feeds.decode`.
- The request has the source of the messages and the definition of the table. The report has an
  entry for each batch, and totals.
- What has no place among the other changes of a feed is refused: a change of another table, and one
  from a log that is in none of the known epochs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.arguments import checked_members, shown
from keytide.base.dataclass import dataclass, field
from keytide.base.row_kind import ROW_KIND
from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.feeds.conversion import Encoding, is_supported
from keytide.feeds.epochs import (
    EPOCH,
    NUMBER,
    PLACE_PATHS,
    POSITION,
    TIME,
    Derived,
    Ordering,
    SequenceSource,
    epoch_numbers,
    epochs_of,
    why_without_epoch,
)
from keytide.feeds.json_columns import literal, pointer, quoted
from keytide.types import DataType, Field, RowType, arrow_schema, parse_sql_type

# -- definitions of feeds and of message formats ---------------------------------------------------


ORDINAL_COLUMN = "_ordinal"
UNAVAILABLE_COLUMN = "_unavailable"
MESSAGE_COLUMN = "_message"

OMITTED = "_omitted"
"""The column of tables that lists the omitted values of a row, NULL without any."""

UNAVAILABLE_VALUE = "__debezium_unavailable_value"
"""Debezium's placeholder for a large value that an update did not change."""


@checked_members
@dataclass(frozen=True)
class FeedSpec:
    """The description of one feed for decoding. Can be pickled.

    - ``columns`` are the table's columns, including ordering columns. Each is read from the field
      with the same name, but those in ``sequence`` are read from feed metadata.
    - ``empty_as_null`` names columns whose source writes '' for NULL.
    - ``encoding`` describes how the source writes dates, decimals and bytes in messages without a
      schema. None means the format's defaults.
    - ``generated`` names columns that the table computes if messages lack them.
    - ``source_table`` is the table of the source, as messages name it (``shop.public.orders``), in
      which ``*`` matches any part. Changes of other tables are rejected. None means the table of
      the batch's first change.
    - ``before_images`` adds a ``-U`` row to each update whose before image is in the feed.

    Raises InvalidError or UnsupportedError for arguments that contradict each other.
    """

    format: str
    columns: tuple[Field, ...]
    primary_key: tuple[str, ...]
    sequence: tuple[SequenceSource, ...] = ()
    empty_as_null: frozenset[str] = frozenset()
    unavailable_value: str = UNAVAILABLE_VALUE
    encoding: Encoding | None = None
    before_images: bool = False
    generated: frozenset[str] = frozenset()
    source_table: str | None = None

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        for name in set(names) & set(DECODER_COLUMNS):
            raise InvalidError(f"Column {name!r} is added by the decoder; rename your column")
        named = {
            "primary_key": self.primary_key,
            "sequence": [source.column for source in self.sequence],
            "empty_as_null": sorted(self.empty_as_null),
        }
        for argument, given in named.items():
            for name in given:
                if name not in names:
                    expected = ", ".join(names)
                    raise InvalidError(f"{argument}: found {name!r}, expected one of {expected}")
        if not self.primary_key:
            raise InvalidError("primary_key is empty: name the columns that identify a row")
        for column in self.columns:
            if not is_supported(column.type):
                raise UnsupportedError(
                    f"Column {column.name!r}: a change feed has no values of type "
                    f"{column.type.sql()}; use STRING or BYTES"
                )

    @property
    def image_columns(self) -> tuple[Field, ...]:
        """The columns that are read from row images."""
        filled = {source.column for source in self.sequence}
        return tuple(column for column in self.columns if column.name not in filled)

    @property
    def rows_schema(self) -> pa.Schema:
        """The schema of :attr:`Decoded.rows`.

        Every column is nullable, because deletes omit values.
        """
        extra = [
            pa.field(ROW_KIND, pa.string()),
            pa.field(ORDINAL_COLUMN, pa.int64()),
            pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())),
            pa.field(MESSAGE_COLUMN, pa.binary()),
        ]
        columns = [column.with_nullable(True) for column in arrow_schema(self.columns)]
        return pa.schema(columns + extra)


class Decoded(NamedTuple):
    """The content of a batch. Each message is in exactly one of the four parts.

    - ``rows``: the table's columns, then ``_row_kind``, ``_ordinal`` (position of the message in
      the batch), ``_unavailable`` (columns whose value the source omitted; they are NULL in the
      row, and must keep the current value) and ``_message`` (the bytes of the message if a value
      was omitted). Rows are in the order of the messages and, within a message, in the order to
      apply them. Either all rows of a message are included, or none.
    - ``rejected``: ``raw`` bytes, ``reason`` and ``ordinal`` of each message that cannot be
      applied.
    - ``tombstones``: the number of NULL messages, which only repeat a delete.
    - ``control``: the number of messages about the feed or the schema, which change no row.
    """

    rows: pa.Table
    rejected: pa.Table
    tombstones: int
    control: int


REJECTED_SCHEMA = pa.schema(
    [pa.field("raw", pa.binary()), pa.field("reason", pa.string()), pa.field("ordinal", pa.int64())]
)
"""The columns of rejected messages."""


@dataclass(frozen=True)
class Envelope:
    """The format of messages with row changes. Strings are SQL. JSON null is read as SQL NULL.

    ``members``: names for JSON pointers into the change, each of which becomes a column of JSON.
    ``wrapper``: pointers to the change and to its schema, in messages that contain a schema.
    ``action``: 'insert', 'update', 'delete', 'control', 'tombstone', or NULL when unknown.
    ``problem``: the reason for rejecting a message, used if ``action`` is NULL. ``changes``: LIST
    of STRUCT(before, after), one for each row. If a column is missing in ``before``, the change did
    not affect it. ``metadata``: paths of :class:`SequenceSource` that are not just a field of the
    payload. ``orderings``: possible orders, best first. A feed's default is the first one that is
    known by one of its fields. ``former``: defaults of earlier versions, which tables may have.
    ``origin``: the paths that name the table of a change. ``encoding``: the format's default.
    ``placeholders``: the forms of an unavailable value in the columns of each type.
    ``read_layout``: reads the encoding of each column from a message's schema. ``types_pointer``,
    ``read_types``: where a message states column types, and how to read them. ``key_pointer``:
    where a message lists the columns of the primary key. ``housekeeping``: fields of a row image
    that are not columns. ``has_keys``: whether the key of a message is a part of its row.
    """

    members: Mapping[str, str]
    action: str
    problem: str
    changes: str
    wrapper: tuple[str, str] | None = None
    metadata: Mapping[str, Derived] = field(default_factory=lambda: MappingProxyType({}))
    orderings: tuple[Ordering, ...] = ()
    former: tuple[tuple[SequenceSource, ...], ...] = ()
    origin: tuple[str, ...] = ()
    encoding: Encoding = field(default_factory=Encoding)
    placeholders: Callable[[str], list[str]] = lambda value: []
    read_layout: Callable[[Any, Encoding], Mapping[str, Encoding]] = lambda schema, default: {}
    types_pointer: str | None = None
    connector_pointer: str | None = None
    read_types: Callable[[Any, str | None], Mapping[str, DataType]] = lambda stated, connector: {}
    key_pointer: str | None = None
    housekeeping: frozenset[str] = frozenset()
    has_keys: bool = False

    def events_sql(self, paths: tuple[str, ...]) -> str:
        """SELECT with one line per changed row FROM ``documents(ordinal, document)``.

        Columns: ``ordinal``, ``layout`` (a number for the message's schema, NULL without one),
        ``action``, ``problem`` (NULL if the row can be read), ``before``, ``after``, and
        ``at PATH`` for each path, as JSON text.
        """
        plain = [path for path in paths if path not in self.metadata]
        derived = {path: self.metadata[path] for path in paths if path in self.metadata}
        columns = {**self.members, **{at_path(path): pointer(*path.split(".")) for path in plain}}
        for each in derived.values():
            columns |= each.members
        named = ", ".join(
            f"""nullif(found[{i}]::VARCHAR, 'null') AS "{quoted(name)}\""""
            for i, name in enumerate(columns, start=1)
        )
        meta = "".join(f', {each.sql} AS "{at_path(path)}"' for path, each in derived.items())
        pointers = ", ".join(map(literal, columns.values()))
        return f"""
            WITH {self._extracted_sql(pointers, len(columns))},
            named AS (SELECT ordinal, layout, is_empty, {named} FROM extracted),
            judged AS (SELECT *, {self.action} AS action {meta} FROM named),
            listed AS (
                SELECT *, CASE WHEN action IN ('insert', 'update', 'delete')
                    THEN {self.changes} END AS changes FROM judged),
            unfolded AS (
                SELECT *, unnest(CASE WHEN len(changes) > 0 THEN changes
                    ELSE [{{'before': NULL, 'after': NULL}}] END) AS change FROM listed)
            SELECT ordinal, layout, action,
                CASE WHEN action IS NULL THEN {self.problem}
                    WHEN action IN ('insert', 'update')
                        AND NOT coalesce(starts_with(change.after, '{{'), FALSE)
                        THEN action || ' without an after image'
                    WHEN action = 'delete'
                        AND NOT coalesce(starts_with(change.before, '{{'), FALSE)
                        THEN 'delete without a before image'
                END AS problem,
                CASE WHEN starts_with(change.before, '{{') THEN change.before END AS before,
                change.after AS after
                {"".join(f', "{quoted(at_path(path))}"' for path in paths)}
            FROM unfolded"""

    def _extracted_sql(self, pointers: str, count: int) -> str:
        """Common table expressions up to ``extracted(ordinal, layout, is_empty, found)``.

        A change without a wrapper is read in one pass. Only a wrapped one is unwrapped first.
        """
        if self.wrapper is None:
            return f"""extracted AS (
                SELECT ordinal, NULL::UBIGINT AS layout, FALSE AS is_empty,
                    json_extract(document, [{pointers}]) AS found FROM documents)"""
        change, schema = f"outside[{count + 1}]", f"outside[{count + 2}]"
        wrapper = ", ".join(map(literal, self.wrapper))
        return f"""opened AS (
                SELECT ordinal, json_extract(document, [{pointers}, {wrapper}]) AS outside
                FROM documents),
            extracted AS (
                SELECT ordinal,
                    CASE WHEN {schema} IS NOT NULL THEN hash({schema}::VARCHAR) END AS layout,
                    coalesce({change}::VARCHAR = 'null', FALSE) AS is_empty,
                    CASE WHEN {change} IS NULL THEN outside
                        ELSE json_extract({change}, [{pointers}]) END AS found
                FROM opened)"""


DECODER_COLUMNS = (ROW_KIND, ORDINAL_COLUMN, UNAVAILABLE_COLUMN, MESSAGE_COLUMN)
"""Columns that decoding adds to the columns of a table."""


def at_path(path: str) -> str:
    """The column of events for a field of their messages."""
    return f"at {path}"


# -- the request -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeedRequest:
    """A feed as the user requests it.

    `columns` None and empty sequences mean that the table or the feed defines them. `continuous`
    runs until it is stopped. Otherwise the run ends when all is read that existed at its start.
    `merge_schema` adds new columns of the feed to the table. `encoding`, `epochs` and
    `source_table` are as in `FeedSpec` and `default_sequence`. `checkpoint` and
    `max_files_per_batch` are for files, the last four for topics. Raises `InvalidError` for an
    `encoding` of another type.
    """

    warehouse: str
    table: str
    source: str
    format: str
    columns: tuple[Field, ...] | None = None
    primary_key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    sequence_by: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    empty_as_null: Sequence[str] = ()
    checkpoint: str | None = None
    dead_letter: str | None = None
    max_files_per_batch: int | None = None
    continuous: bool = False
    merge_schema: bool = False
    encoding: Encoding | None = None
    epochs: Sequence[str] = ()
    source_table: str | None = None
    max_messages_per_batch: int | None = None
    starting_offsets: str | None = None
    consumer_properties: Mapping[str, str] = field(default_factory=dict)
    if_lost: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.encoding, Encoding | None):
            raise InvalidError(
                f"encoding is {shown(self.encoding)}; expected a keytide.cdc.Encoding, such as "
                "debezium_encoding(decimal_handling_mode='precise')"
            )

    def refuse_topic_options(self) -> None:
        """Raises `InvalidError` for an option that a feed of files does not use."""
        given = {
            "starting offsets": self.starting_offsets,
            "consumer properties": self.consumer_properties or None,
            "a number of messages per batch": self.max_messages_per_batch,
            "what to do if offsets are lost": self.if_lost,
        }
        for what, value in given.items():
            if value is not None:
                raise InvalidError(
                    f"{what} ({value!r}) are only for topics, and {self.source!r} is not a topic; "
                    "remove them, or use kafka://host:port/topic"
                )


def columns_of(schema: str | Sequence[Field] | None) -> tuple[Field, ...] | None:
    """Columns given as SQL text or as fields. Raises `InvalidError` for invalid text."""
    if not isinstance(schema, str):
        return None if schema is None else tuple(schema)
    row = parse_sql_type(f"ROW<{schema}>")
    if not isinstance(row, RowType):
        raise InvalidError(
            f"the columns {schema!r} cannot be parsed; write them as 'id BIGINT, name STRING'"
        )
    return row.fields


# -- the report ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchReport:
    """One micro-batch: `rows_in` messages, each of which is counted in one other number.

    `skipped` messages change no row: tombstones that repeat a delete, and messages about the schema
    or the feed. `snapshot_id` is None if nothing had to be written.
    """

    batch_id: int
    rows_in: int
    applied: int
    late: int
    duplicate: int
    rejected: int
    skipped: int
    seconds: float
    snapshot_id: int | None


@dataclass(frozen=True)
class IngestReport:
    """The result of an ingestion: totals, and its batches in order."""

    table: str
    dead_letter: str
    batches: tuple[BatchReport, ...]

    @property
    def rows_in(self) -> int:
        """The number of messages read."""
        return sum(batch.rows_in for batch in self.batches)

    @property
    def applied(self) -> int:
        """The number of messages that were the latest of their key when they arrived."""
        return sum(batch.applied for batch in self.batches)

    @property
    def rejected(self) -> int:
        """The number of messages in the dead-letter table."""
        return sum(batch.rejected for batch in self.batches)


# -- places of changes at their source -------------------------------------------------------------


ORIGIN = "origin"
"""The column with the name of a change's table at its source, NULL if its message has none."""

_ORDER, _SOURCE_TABLE = "order: ", "source table: "


def assign_epochs(events: pl.DataFrame, spec: FeedSpec, envelope: Envelope) -> pl.DataFrame:
    """Events with the number of their epoch, and with a `problem` if they have no place."""
    events = with_origin(events, envelope)
    is_change = pl.col("before").is_not_null() | pl.col("after").is_not_null()
    problems = [pl.lit(None, dtype=pl.String)]

    # A change of another table than the feed's.
    wanted = spec.source_table
    if wanted is None:
        wanted = next(iter(events.filter(is_change)[ORIGIN].drop_nulls()), None)
    if wanted is not None:
        fits = pl.col(ORIGIN).str.contains(f"^{re.escape(wanted).replace(chr(92) + '*', '.*')}$")
        reason = pl.format(
            f"{_SOURCE_TABLE}found a change of {{}}, expected {wanted}; divide the feed, or give "
            "source_table, in which * matches any part of a name",
            ORIGIN,
        )
        problems.append(pl.when(~fits).then(reason))

    epochs = epochs_of(spec.sequence)
    if epochs:
        events = with_places(events)
        events = events.with_columns(epoch_numbers(events, epochs))
        problems.append(pl.when(pl.col(EPOCH).is_null()).then(why_without_epoch(epochs)))
    else:
        events = events.with_columns(pl.lit(1).alias(EPOCH))
    problem = pl.coalesce("problem", pl.when(is_change).then(pl.coalesce(problems)))
    number = pl.col(EPOCH).cast(pl.String).alias(at_path(EPOCH))
    return events.with_columns(problem.alias("problem"), number)


def with_places(events: pl.DataFrame) -> pl.DataFrame:
    """Events with the columns of `PLACE_PATHS` that were read. NULL where a text is unusable."""
    read = [path for path in PLACE_PATHS if at_path(path) in events.columns]
    whole = (TIME, NUMBER, POSITION)
    return events.with_columns(
        pl.col(at_path(path))
        .cast(pl.Int64 if path in whole else pl.String, strict=False)
        .alias(path)
        for path in read
    )


def with_origin(events: pl.DataFrame, envelope: Envelope) -> pl.DataFrame:
    """Events with the column `ORIGIN`."""
    parts = [pl.col(at_path(path)).str.strip_chars('"') for path in envelope.origin]
    name = pl.concat_str(parts, separator=".", ignore_nulls=True) if parts else pl.lit(None)
    return events.with_columns(name.cast(pl.String).replace("", None).alias(ORIGIN))


def check_places(decoded: Decoded) -> None:
    """Raises `DataError` if some changes have no place, because all later ones would be missing."""
    reasons = decoded.rejected["reason"]
    outside = pc.or_(pc.starts_with(reasons, _ORDER), pc.starts_with(reasons, _SOURCE_TABLE))
    found = reasons.filter(outside)
    if len(found):
        raise DataError(f"{found[0].as_py()}. Nothing of this batch was written")
