"""Inference of a table from a sample of a feed: columns, key, order and epochs, and later changes.

Types that messages state (Debezium's schema, Canal's ``mysqlType``) are used unchanged. Otherwise
each column gets the narrowest type that holds every sampled value with all its digits. JSON null
and placeholders do not count:

- no value at all: STRING
- ``true`` and ``false``: BOOLEAN
- integers: BIGINT, else DECIMAL(38, 0)
- numbers: DOUBLE
- strings, all of them dates: DATE
- strings, all of them times without offset: TIMESTAMP(6)
- strings, all of them times, some with offset: TIMESTAMP(6) WITH LOCAL TIME ZONE
- all else, and mixtures: STRING (objects and arrays as JSON text)

Strings of digits stay STRING, because leading zeros can matter.

Schema changes that a feed needs are new columns, and types that values do not fit. Messages are
checked in parts, in any order. `combined_columns` combines the results to one answer, which does
not depend on how the messages were divided.

An epoch's log is recognized by its name and, where its numbering starts again, by its server. Logs
follow each other as their messages do, which the times of the messages must confirm. Nothing else
tells their order, so anything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise

import polars as pl
import pyarrow as pa

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.text import counted
from keytide.definition.schema_evolution import AddColumn, ChangeColumnType, SchemaChange
from keytide.errors import InvalidError, UnsupportedError
from keytide.feeds.conversion import OFFSET, Encoding, convert, places_of
from keytide.feeds.decode import Documents, read_documents, read_events, read_json
from keytide.feeds.epochs import (
    ANY_LOG,
    BIGINT,
    EPOCH,
    EPOCH_SOURCE,
    LOG,
    NUMBER,
    PLACE_PATHS,
    POSITION,
    SERVER,
    TIME,
    Epoch,
    Ordering,
    SequenceSource,
    parse_epochs,
)
from keytide.feeds.feed import (
    DECODER_COLUMNS,
    ORIGIN,
    UNAVAILABLE_VALUE,
    Envelope,
    FeedSpec,
    at_path,
    with_origin,
    with_places,
)
from keytide.feeds.formats import envelope_of
from keytide.feeds.json_columns import JsonValues, exact_numbers, read_entries, read_members
from keytide.format.schema import TableSchema
from keytide.types import STRING, AtomicType, DataType, Field
from keytide.types.logical import common_type

# -- epochs ----------------------------------------------------------------------------------------


_AT, _ARRIVED = "at", "arrived"


def sampled_epochs(events: pl.DataFrame) -> tuple[Epoch, ...]:
    """The epochs of some events in order of arrival, with the columns of `PLACE_PATHS`.

    Raises `InvalidError` if the order of the logs is unknown.
    """
    placed = events.filter(pl.any_horizontal(pl.col(LOG, NUMBER).is_not_null()))
    if placed.is_empty():
        return (Epoch(),)
    unread = placed.filter(pl.col(NUMBER).is_null())
    if unread.height:
        raise InvalidError(
            f"order: found the log file {unread[LOG][0]!r}, expected a name with a number such as "
            "mysql-bin.000001; give the fields that order the changes"
        )
    # A position in a file has four bytes.
    at = pl.col(NUMBER).cast(pl.Int128) * (1 << 32) + pl.col(POSITION).fill_null(0)
    placed = placed.with_columns(at.alias(_AT), pl.col(LOG).fill_null(ANY_LOG))
    placed = placed.with_row_index(_ARRIVED)
    logs = placed.partition_by(LOG, maintain_order=True)
    runs = _in_order([run for log in logs for run in _runs(log)])
    epochs = []
    for place, run in enumerate(runs):
        log = run[LOG][0]
        # The time of a run only places changes without a server in logs of one name.
        same = [each for each in runs[:place] if each[LOG][0] == log]
        is_told = bool(same) and all(_is_later(each, run, strictly=True) for each in same)
        since = run[TIME].min() if is_told else None
        epochs.append(Epoch(log, _servers(run), since))  # type: ignore[arg-type]
    return tuple(epochs)


def _runs(log: pl.DataFrame) -> list[pl.DataFrame]:
    """The events of one log, divided where its numbering starts again."""
    times = log[TIME]
    until, since = times.cum_max().forward_fill().shift(1), times.cum_min(reverse=True)
    is_later = (until <= since.backward_fill()).fill_null(value=True)
    places = ((log[_AT] < log[_AT].cum_max()) & is_later).arg_true()
    for place in places:
        before, after = log[:place], log[place:]
        is_told = bool(_servers(before)) or _is_later(before, after, strictly=True)
        if is_told and _servers(after) and not _servers(before) & _servers(after):
            return [before, *_runs(after)]
        if _is_later(before, after, strictly=True):
            if place != places[0]:  # the times do not tell at which of two events it started again
                numbers = log[NUMBER]
                raise InvalidError(
                    f"order: the numbers of log {log[LOG][0]} go back to {numbers[places[0]]} and "
                    f"{numbers[place]}, and the times of the messages do not tell where the log "
                    "started again; give the fields that order the changes"
                )
            name, again = log[LOG][0], Epoch(log[LOG][0], since=after[TIME].min())  # type: ignore[arg-type]
            raise InvalidError(
                f"order: the numbers of log {name} go back from {before[NUMBER].max()!r} to "
                f"{after[NUMBER][0]} although its messages are later. If the log started again, "
                f"give the epochs: {name!r}, {again.text!r}"
            )
    return [log]


def _in_order(runs: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """The runs in the order of their logs."""
    by_arrival = sorted(runs, key=lambda run: run[_ARRIVED].min())  # type: ignore[arg-type,return-value]
    pairs = list(pairwise(by_arrival))
    is_apart = all(one[_ARRIVED].max() < other[_ARRIVED].min() for one, other in pairs)  # type: ignore[operator]
    if is_apart and all(_is_later(*pair) for pair in pairs):
        return by_arrival
    if not is_apart and all(run[TIME].null_count() < run.height for run in runs):
        by_time = sorted(runs, key=lambda run: run[TIME].min())  # type: ignore[arg-type,return-value]
        steps = pairwise(by_time)
        if all(_is_later(*pair, strictly=True) for pair in steps):
            return by_time
    names = [Epoch(run[LOG][0], _servers(run)).text for run in by_arrival]
    raise InvalidError(
        f"order: the messages come from {len(runs)} logs ({', '.join(names)}), and neither their "
        "order nor their times tell which log is older; give the epochs in their order"
    )


def _is_later(before: pl.DataFrame, after: pl.DataFrame, *, strictly: bool = False) -> bool:
    """Whether the times of one part follow those of another one. Missing times tell nothing."""
    last, first = before[TIME].max(), after[TIME].min()
    if last is None or first is None:
        return not strictly
    return bool(last < first if strictly else last <= first)  # type: ignore[operator]


def _servers(run: pl.DataFrame) -> frozenset[str]:
    found: Sequence[str] = run[SERVER].drop_nulls().unique().to_list()
    return frozenset(found)


# -- columns, primary key and order ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sample:
    """The first messages of a feed, which are read once, and what they say about its table.

    `paths` are the feed fields for which :meth:`source` can be called. Raises InvalidError for an
    unknown format and, when messages are read, for messages of another type.
    """

    messages: pa.Array | pa.ChunkedArray
    format: str
    paths: tuple[str, ...] = ()
    epochs: tuple[Epoch, ...] = ()

    def columns(self) -> tuple[Field, ...]:
        """The columns of the feed's rows. See :func:`infer_columns`."""
        self._refuse_unsupported()
        seen = _columns_in_rows(self._events, self._envelope)
        columns = {**dict.fromkeys(seen), **_declared(self._documents, self._envelope)}
        if not columns:
            raise InvalidError(
                f"The sample of {len(self.messages)} messages contains no row of format "
                f"{self.format!r}; use another sample, or declare the columns"
            )
        return tuple(
            Field(-1, name, type or _type_that_fits(seen[name])) for name, type in columns.items()
        )

    def needed_columns(self, spec: FeedSpec) -> tuple[Field, ...]:
        """The columns that a spec of the feed lacks, and those whose type may be too narrow.

        Their types are those that messages state, otherwise those of the values, which are only
        read if some do not fit. A column without a value or a stated type is not included yet.
        """
        seen = _columns_in_rows(self._events, self._envelope)
        stated_types = _declared(self._documents, self._envelope)
        encoding = spec.encoding or self._envelope.encoding
        known = {column.name: column.type for column in spec.columns}
        types = {
            name: _type_that_fits(values)
            for name, values in seen.items()
            if name not in stated_types
            and values.text.is_not_null().any()
            and not (
                name in known
                and bool(
                    convert(values, known[name], encoding).null_count == values.text.null_count()
                )
            )
        }
        types |= {n: type for n, type in stated_types.items() if type != known.get(n)}
        return tuple(Field(-1, n, type) for n, type in types.items() if n not in DECODER_COLUMNS)

    def primary_key(self) -> tuple[str, ...]:
        """The key columns that messages name themselves, empty if none does."""
        key_pointer = self._envelope.key_pointer
        if key_pointer is None:
            return ()
        [names] = read_members(self._documents.text.to_arrow(), [key_pointer])
        lists = names.text.filter((names.type == "ARRAY").fill_null(False))
        return tuple(map(str, json.loads(lists[0]))) if len(lists) else ()

    def sequence(self) -> tuple[SequenceSource, ...]:
        """The ordering columns that the feed can fill. See :func:`default_sequence`."""
        self._refuse_unsupported()
        ordering = self._ordering
        if ordering is None:
            return ()
        if ordering.refusal is not None:
            raise InvalidError(f"order: {ordering.refusal}")
        if ordering.sources[0] != EPOCH_SOURCE:
            return ordering.sources
        epochs = self.epochs or sampled_epochs(with_places(self._events))
        return (replace(EPOCH_SOURCE, epochs=epochs), *ordering.sources[1:])

    def origin(self) -> str | None:
        """The table of the source. None if messages do not name it.

        Raises InvalidError if there are several.
        """
        events = with_origin(self._events, self._envelope)
        changes = events.filter(pl.col("before").is_not_null() | pl.col("after").is_not_null())
        names = changes[ORIGIN].drop_nulls().unique(maintain_order=True).to_list()
        if len(names) > 1:
            raise InvalidError(
                f"source table: the feed has changes of {counted(len(names), 'table')} "
                f"({', '.join(names[:5])}), but one table can have only those of one; divide the "
                "feed, or give source_table, in which * matches any part of a name"
            )
        return names[0] if names else None

    def orders_by(self, columns: tuple[str, ...]) -> bool:
        """Whether the columns are those of the feed's order."""
        ordering = self._ordering
        return ordering is not None and tuple(s.column for s in ordering.sources) == columns

    def former(self, columns: tuple[str, ...]) -> str | None:
        """The fields of a former order of the format with these columns, None if there is none."""
        for sources in self._envelope.former:
            if tuple(source.column for source in sources) == columns:
                return ",".join(source.path for source in sources)
        return None

    def source(self, path: str) -> SequenceSource:
        """The ordering column for a field of the feed, such as ``source.lsn``.

        A field that is known for the format has its usual name and type. Any other is named after
        its last part, and is BIGINT if every sampled value is an integer, otherwise STRING.
        REQUIRES: a known field, or one of `paths`.
        """
        orders = (*self._envelope.former, *(o.sources for o in self._envelope.orderings))
        known = {source.path: source for sources in orders for source in sources}
        if path in known:
            return known[path]
        values = self._events[at_path(path)].drop_nulls()
        # 18 digits always fit into a BIGINT, but 19 may not.
        is_whole = len(values) > 0 and values.str.contains(r"^-?\d{1,18}$").all()
        column = "_" + path.rsplit(".", 1)[-1]
        return SequenceSource(path, column, BIGINT if is_whole else STRING)

    def _refuse_unsupported(self) -> None:
        """Raises UnsupportedError for a connector whose messages contain no rows."""
        problems = self._events["problem"].drop_nulls()
        unsupported = problems.filter(problems.str.starts_with("connector "))
        if len(unsupported):
            raise UnsupportedError(f"{unsupported[0]}; use a connector of a relational database")

    @cached_property
    def _ordering(self) -> Ordering | None:
        """The best order whose field the sample has."""
        for ordering in self._envelope.orderings:
            if any(self._events[at_path(path)].count() for path in ordering.known_by):
                return ordering
        return None

    @cached_property
    def _envelope(self) -> Envelope:
        return envelope_of(self.format)

    @cached_property
    def _documents(self) -> Documents:
        return read_documents(self.messages)

    @cached_property
    def _events(self) -> pl.DataFrame:
        envelope = self._envelope
        known_by = (path for each in envelope.orderings for path in each.known_by)
        places = PLACE_PATHS if LOG in envelope.metadata else ()
        paths = dict.fromkeys((*known_by, *places, *envelope.origin, *self.paths))
        exact = self._documents._replace(text=exact_numbers(self._documents.text))
        return read_events(exact, envelope, tuple(path for path in paths if path != EPOCH))


@checked
def infer_columns(messages: pa.Array | pa.ChunkedArray, format: str) -> tuple[Field, ...]:
    """Infer the columns of a feed's rows, in the order of their first appearance, with ids -1.

    Ordering columns are not included. Raises `InvalidError` if no message contains a row, and as
    `infer_primary_key` does.
    """
    return Sample(messages, format).columns()


@checked
def infer_primary_key(messages: pa.Array | pa.ChunkedArray, format: str) -> tuple[str, ...]:
    """Return the key columns that messages name (Canal, Maxwell), empty if none does.

    Raises `InvalidError` for an unknown format, and for messages that are neither strings nor
    bytes.
    """
    return Sample(messages, format).primary_key()


@checked
def default_sequence(
    messages: pa.Array | pa.ChunkedArray,
    format: str,
    *,
    epochs: Sequence[str] = (),
    source_table: str | None = None,
) -> tuple[SequenceSource, ...]:
    """Return the ordering columns that give the commit order of a feed's source.

    - Debezium: ``_epoch``, then the position of the commit in the log of its source, then the
      position of the change. Other connectors: ``source.ts_ms`` and ``ts_ms``.
    - Maxwell: ``_epoch``, then the binlog position.
    - Canal: ``ts`` and ``id``.
    - DMS: ``AR_H_CHANGE_SEQ``, otherwise the time of the commit and the place in the transaction.

    Rows of a snapshot precede the changes that follow it. `epochs` are the logs of the source in
    their order, such as ``mysql-bin@1``. By default they are those of the sample, which must be in
    the order of the feed. docs/feed-order.md lists the orders and explains epochs.

    Empty if the sample has none of these fields. Raises InvalidError if the fields do not give an
    order, if the order of logs is unknown, for changes of several tables without a `source_table`,
    and as `infer_primary_key` does.
    """
    sample = Sample(messages, format, epochs=parse_epochs(epochs))
    if source_table is None:
        sample.origin()
    return sample.sequence()


def _declared(documents: Documents, envelope: Envelope) -> Mapping[str, DataType]:
    """The types that messages state. A later message overrides earlier ones."""
    if envelope.types_pointer is None:
        return {}
    pointers = [envelope.types_pointer, envelope.connector_pointer or envelope.types_pointer]
    schemas, connectors = read_members(documents.text.to_arrow(), pointers)
    stated = pl.DataFrame({"schema": schemas.text, "connector": connectors.text})
    distinct = stated.filter(schemas.type == "OBJECT").unique(maintain_order=True)
    types: dict[str, DataType] = {}
    for text, connector in distinct.iter_rows():
        types |= envelope.read_types(read_json(text), connector)
    return types


def _columns_in_rows(events: pl.DataFrame, envelope: Envelope) -> dict[str, JsonValues]:
    """Every value of each column in the images of a sample. Placeholders are None."""
    images = pl.concat([events["after"], events["before"]]).drop_nulls()
    json_types = pl.repeat("OBJECT", len(images), dtype=pl.String, eager=True)
    _, names, values = read_entries(JsonValues(images, json_types))
    is_known = ~values.text.is_in(envelope.placeholders(UNAVAILABLE_VALUE))
    entries = pl.DataFrame(
        {"name": names.text, "text": values.text.set(~is_known, None), "type": values.type}
    ).filter(~pl.col("name").is_in(envelope.housekeeping))
    groups = entries.partition_by("name", maintain_order=True)
    return {group["name"][0]: JsonValues(group["text"], group["type"]) for group in groups}


def _type_that_fits(values: JsonValues) -> DataType:
    values = JsonValues(*(column.filter(values.text.is_not_null()) for column in values))
    json_types = set(values.type)
    if not json_types:
        return STRING
    candidates: Sequence[DataType]
    if json_types != {"VARCHAR"}:
        candidates = next((types for known, types in _TYPES_OF_JSON if json_types <= known), ())
    elif not values.text.str.contains(":", literal=True).any():
        candidates = [AtomicType("DATE")]
    elif values.text.str.contains(OFFSET).any():
        candidates = [AtomicType("TIMESTAMP_LTZ", precision=6)]
    else:
        candidates = [AtomicType("TIMESTAMP", precision=6)]
    if json_types <= _NUMBERS:
        # A decimal with the places of the numbers, and as many other digits as possible.
        places = int(places_of(values.text).clip(0, _DIGITS_MAX).max() or 0)  # type: ignore[arg-type]
        candidates = [*candidates, AtomicType("DECIMAL", precision=_DIGITS_MAX, scale=places)]
    for type_ in candidates:
        if convert(values, type_, Encoding()).null_count == 0:
            return type_
    return STRING


_DIGITS_MAX = 38


_TYPES_OF_JSON: Sequence[tuple[frozenset[str], Sequence[DataType]]] = (
    (frozenset({"BOOLEAN"}), [AtomicType("BOOLEAN")]),
    (frozenset({"BIGINT", "UBIGINT"}), [BIGINT, AtomicType("DECIMAL", precision=38, scale=0)]),
    (frozenset({"BIGINT", "UBIGINT", "DOUBLE"}), [AtomicType("DOUBLE")]),
)
_NUMBERS = frozenset({"BIGINT", "UBIGINT", "HUGEINT", "DOUBLE"})


# -- schema changes --------------------------------------------------------------------------------


def feed_growth(schema: TableSchema, needed: Iterable[Field]) -> list[SchemaChange]:
    """The schema changes for a table to accept the columns of a feed.

    New columns are nullable and come last. Types are widened to the narrowest type that holds the
    values of both. If there is none, and for key and partition columns, the type stays, and
    messages with values that do not fit are rejected.
    """
    fixed = {*schema.primary_keys, *schema.partition_keys}
    changes: list[SchemaChange] = []
    for field in needed:
        if field.name not in schema.by_name:
            changes.append(AddColumn((field.name,), field.type.with_nullable(True)))
        elif field.name not in fixed:
            old = schema.field(field.name).type
            wider = _common(old, field.type)
            if wider is not None and wider.with_nullable(True) != old.with_nullable(True):
                changes.append(ChangeColumnType((field.name,), wider))
    return changes


def combined_columns(brought: Iterable[Field]) -> list[Field]:
    """One field for each column from several parts. Types without a common type become STRING."""
    types: dict[str, set[DataType]] = {}
    for field in brought:
        types.setdefault(field.name, set()).add(field.type.with_nullable(True))
    return [
        Field(-1, name, reduce(_of_both, sorted(found, key=lambda type_: type_.sql())))
        for name, found in types.items()
    ]


def _of_both(one: DataType, other: DataType) -> DataType:
    if one == other:
        return one
    common = _common(one, other)
    if common is not None:
        return common
    roots = {type_.root for type_ in (one, other) if isinstance(type_, AtomicType)}
    if len(roots) == 2 and roots <= _OUTGROWN_NUMBERS:
        return AtomicType("DOUBLE")
    if roots == {"TIMESTAMP", "TIMESTAMP_LTZ"}:
        return AtomicType("TIMESTAMP_LTZ", precision=6)
    return STRING


_OUTGROWN_NUMBERS = frozenset(
    {"TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"}
)


def _common(old: DataType, new: DataType) -> DataType | None:
    if isinstance(old, AtomicType) and isinstance(new, AtomicType):
        return common_type(old, new)
    return None
