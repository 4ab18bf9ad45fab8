"""Infers a table from a sample of a feed: columns, primary key, and order of changes.

Types that messages state (Debezium's schema, Canal's ``mysqlType``) are used unchanged. Otherwise
each column gets the narrowest type that fits every sampled value:

=============================================  ============================== values (JSON null and
placeholders left out)   type =============================================
============================== none at all                                    STRING ``true`` and
``false``                         BOOLEAN whole numbers                                  BIGINT,
else DECIMAL(38, 0) numbers                                        DOUBLE strings, all of them dates
DATE strings, all of them times without offset      TIMESTAMP(6) strings, all of them times, some
with offset   TIMESTAMP(6) WITH LOCAL TIME ZONE all else, and mixtures
STRING (objects and arrays as JSON text) =============================================
==============================

Strings of digits stay STRING, because leading zeros can matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.arguments import checked
from keytide.cdc.documents import Documents, read_documents
from keytide.cdc.feed import (
    BIGINT,
    DECODER_COLUMNS,
    UNAVAILABLE_VALUE,
    Envelope,
    FeedSpec,
    SequenceSource,
)
from keytide.cdc.formats import envelope_of
from keytide.cdc.json_sql import JsonValues, read_entries, read_members
from keytide.cdc.parse import read_events, stated
from keytide.cdc.values import Encoding, convert, has_offset
from keytide.errors import InvalidError
from keytide.lazily import cached_property
from keytide.types import STRING, AtomicType, DataType, Field

__all__ = ["Sample", "default_sequence", "infer_columns", "infer_primary_key"]


@dataclass(frozen=True, eq=False)
class Sample:
    """The first messages of a feed, which are read once, and what they say about its table.

    `paths` are the feed fields for which :meth:`source` can be called. Raises InvalidError for an
    unknown format and, when messages are read, for messages of another type.
    """

    messages: pa.Array | pa.ChunkedArray
    format: str
    paths: tuple[str, ...] = ()

    def columns(self) -> tuple[Field, ...]:
        """The columns of the feed's rows. See :func:`infer_columns`."""
        seen = _columns_seen(self._events, self._envelope)
        columns = {**dict.fromkeys(seen), **_declared(self._documents, self._envelope)}
        if not columns:
            raise InvalidError(
                f"The sample of {len(self.messages)} messages contains no row of format "
                f"{self.format!r}; use another sample, or declare the columns"
            )
        return tuple(
            Field(-1, name, type or _type_that_fits(seen[name])) for name, type in columns.items()
        )

    def brought(self, spec: FeedSpec) -> tuple[Field, ...]:
        """The columns that a spec of the feed lacks, and those whose type may be too narrow.

        Their types are those that messages state, otherwise those of the values, which are only
        read if some do not fit. A column without a value or a stated type is not included yet.
        """
        seen = _columns_seen(self._events, self._envelope)
        stated_types = _declared(self._documents, self._envelope)
        encoding = spec.encoding or self._envelope.encoding
        known = {column.name: column.type for column in spec.columns}
        types = {
            name: _type_that_fits(values)
            for name, values in seen.items()
            if name not in stated_types
            and values.text.is_not_null().any()
            and not (name in known and _all_fit(values, known[name], encoding))
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
        for ordering in self._envelope.orderings:
            if self._member(ordering[0].path).count():
                return ordering
        return ()

    def source(self, path: str) -> SequenceSource:
        """The ordering column for a field of the feed, such as ``source.lsn``.

        A field that is known for the format has its usual name and type. Any other is named after
        its last part, and is BIGINT if every sampled value is an integer, otherwise STRING.
        REQUIRES: a known field, or one of `paths`.
        """
        orderings = self._envelope.orderings
        known = {source.path: source for ordering in orderings for source in ordering}
        if path in known:
            return known[path]
        values = self._member(path).drop_nulls()
        # 18 digits always fit into a BIGINT, but 19 may not.
        is_whole = len(values) > 0 and values.str.contains(r"^-?\d{1,18}$").all()
        column = "_" + path.rsplit(".", 1)[-1]
        return SequenceSource(path, column, BIGINT if is_whole else STRING)

    @cached_property
    def _envelope(self) -> Envelope:
        return envelope_of(self.format)

    @cached_property
    def _documents(self) -> Documents:
        return read_documents(self.messages)

    @cached_property
    def _members(self) -> list[str]:
        leading = (ordering[0].path for ordering in self._envelope.orderings)
        return list(dict.fromkeys((*leading, *self.paths)))

    @cached_property
    def _events(self) -> pl.DataFrame:
        return read_events(self._documents, self._envelope, self._members)

    def _member(self, path: str) -> pl.Series:
        return self._events[f"meta_{self._members.index(path)}"]


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
    messages: pa.Array | pa.ChunkedArray, format: str
) -> tuple[SequenceSource, ...]:
    """Return the ordering columns that a feed can fill, using the best order in the sample.

    - Debezium: the log position of its connector (``source.lsn``; ``source.file``, ``pos`` and
      ``row``; ``source.commit_lsn`` and ``change_lsn``; ``source.scn``), otherwise ``source.ts_ms``
      and ``ts_ms``.
    - Maxwell: the binlog position if it is written, otherwise ``ts``, ``xid``, ``xoffset``.
    - Canal: ``es`` and ``id``.
    - DMS: ``metadata.timestamp``, or ``AR_H_CHANGE_SEQ`` of flat rows.

    Empty if the sample has none of them. Raises as `infer_primary_key` does.
    """
    return Sample(messages, format).sequence()


def _declared(documents: Documents, envelope: Envelope) -> Mapping[str, DataType]:
    """The types that messages state. A later message overrides earlier ones."""
    if envelope.types_pointer is None:
        return {}
    [schemas] = read_members(documents.text.to_arrow(), [envelope.types_pointer])
    distinct = schemas.text.filter(schemas.type == "OBJECT").unique(maintain_order=True)
    types: dict[str, DataType] = {}
    for text in distinct:
        types |= stated(envelope.read_types, text) or {}
    return types


def _columns_seen(events: pl.DataFrame, envelope: Envelope) -> dict[str, JsonValues]:
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
    if json_types <= {"VARCHAR"}:
        candidates = _types_of_strings(values.text)
    else:
        candidates = next((types for known, types in _TYPES_OF_JSON if json_types <= known), ())
    return next((type for type in candidates if _fits(values, type)), STRING)


def _types_of_strings(text: pl.Series) -> Sequence[DataType]:
    if not text.str.contains(":", literal=True).any():
        return [AtomicType("DATE")]
    zoned = AtomicType("TIMESTAMP_LTZ", precision=6)
    return [zoned] if has_offset(text).any() else [AtomicType("TIMESTAMP", precision=6)]


def _all_fit(values: JsonValues, type: DataType, encoding: Encoding) -> bool:
    return bool(convert(values, type, encoding).null_count == values.text.null_count())


def _fits(values: JsonValues, type: DataType) -> bool:
    array = convert(values, type, Encoding())
    return bool(array.null_count == 0)


_TYPES_OF_JSON: Sequence[tuple[frozenset[str], Sequence[DataType]]] = (
    (frozenset({"BOOLEAN"}), [AtomicType("BOOLEAN")]),
    (frozenset({"BIGINT", "UBIGINT"}), [BIGINT, AtomicType("DECIMAL", precision=38, scale=0)]),
    (frozenset({"BIGINT", "UBIGINT", "DOUBLE"}), [AtomicType("DOUBLE")]),
)
