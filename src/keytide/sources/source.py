"""Sources of row versions, such as a folder or a Delta table, and their stored definitions.

A source is opened once per statement. The result, a `PinnedSource`, is one version of the data:
columns, and parts that can be read independently and anywhere. A part can be a file, a range of
files or a query.

The order of arrival decides between equal watermarks (rule R2 of docs/semantics.md). So a source
provides it if it knows it: from Delta versions or Iceberg sequence numbers, but never from the
times or names of files (R3).

The stored definition of an external table is a schema whose options say what is stored where. Code
that writes, compacts or expires must never work on such a table. So code that opens one of the
lake's own tables calls `refuse_external`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.definition.checks import (
    check_types,
    check_upsert_keys,
    doubts_of_keys,
    refuse_same_names,
)
from keytide.definition.kind import EXTERNAL_TABLE
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys, stored_names
from keytide.predicate.predicate import Predicate
from keytide.store import Store
from keytide.types import Field

# -- sources and their parts -----------------------------------------------------------------------


class SourcePart(Protocol):
    """Rows that are read together. Can be pickled. `repr` shows no secret.

    `str` is the name in messages: a file, a query.
    """

    @property
    def rows(self) -> int | None:
        """The number of rows, including deleted ones. None if it is unknown."""
        ...

    @property
    def stored_bytes(self) -> int | None:
        """The stored size in bytes, None if it is unknown."""
        ...

    @property
    def commit(self) -> int:
        """The commit that added the rows. A later commit has a higher number.

        0 for all parts of a source whose commits have no order.
        """
        ...

    @property
    def is_in_order(self) -> bool:
        """Whether the rows of this part are stored in order of arrival.

        False for files that another engine created from older ones, and if there is no order.
        """
        ...

    def batches(
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are not deleted in the source, in order, about `rows_max` at a time.

        They have these columns, in this order, with the types of `PinnedSource.schema`. Rows that
        do not match `key_condition` can be skipped. It only refers to primary key columns. Raises
        `DataError`, naming what cannot be read.
        """
        ...


class PinnedSource(Protocol):
    """One version of the data."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, including partition columns, in types that Keytide's tables support."""
        ...

    @property
    def version(self) -> str | None:
        """The name of this version, None if there are no versions."""
        ...

    @property
    def cut_by(self) -> Sequence[str]:
        """The columns whose values divide the rows of one commit among several parts.

        The order of arrival is unknown for rows of a commit that differ in one of them.
        """
        ...

    def parts(self, key_condition: Predicate | None = None) -> Sequence[SourcePart]:
        """The parts by ascending commit and, within a commit, in order of arrival.

        Parts that certainly have no row that matches `key_condition` can be skipped.
        """
        ...


class AppendableSource(PinnedSource, Protocol):
    """One version of a table to which rows can be appended."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the table. Empty if its format has none."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """The NOT NULL columns."""
        ...

    @property
    def tells_order(self) -> bool:
        """Whether newly appended rows are known to be later than existing ones."""
        ...


class Source(Protocol):
    """The data at a location."""

    @property
    def location(self) -> str:
        """The location for messages, without secrets."""
        ...

    def pin(self, version: str | int | None = None) -> PinnedSource:
        """The current state, or a version, read once.

        Raises `NotFoundError` if there is nothing, or no such version, `UnsupportedError` naming
        what this release cannot read, `DataError` for damaged data and for a source that does not
        respond, and `SetupError` naming the extra that is not installed. No message contains a
        secret.
        """
        ...


SourceOptions = Mapping[str, str]
"""The stored part of a definition that says how to open a source, without secrets."""


@dataclass(frozen=True)
class Place:
    """Where and how a source is opened.

    `near` is the lake's own store, whose options are used if the location is in the same bucket.
    `columns` are those of the definition, with its types, for formats without a schema. None means
    that the source provides them.
    """

    location: str
    options: SourceOptions
    near: Store
    columns: pa.Schema | None = None
    needed: tuple[str, ...] = ()
    """The columns without which rows cannot be merged."""


# -- reading a definition --------------------------------------------------------------------------


_IMPLIED = {
    keys.TYPE, keys.EXTERNAL_FORMAT, keys.EXTERNAL_LOCATION, keys.EXTERNAL_SCHEMA_ON_READ,
    keys.SEQUENCE_FIELD, keys.PRIMARY_KEY_NULLABLE,
}  # fmt: skip
_TAKEN = (
    keys.WATERMARK_KEY, keys.TOMBSTONE_KEY, keys.TOMBSTONE_STRING_KEY_VALUE, keys.UPSERT_ON_TIE,
    keys.READ_MEMORY,
)  # fmt: skip
_OPTION_PREFIX = keys.key_of(keys.EXTERNAL_OPTION, "")
_USER_PREFIX = keys.key_of(keys.USER, "")


def format_of(schema: TableSchema) -> str:
    """The format of the data at the location."""
    return schema.options[keys.EXTERNAL_FORMAT]


def location_of(schema: TableSchema) -> str:
    """Where the rows are stored, without any secret."""
    return schema.options[keys.EXTERNAL_LOCATION]


def is_read_on_demand(schema: TableSchema) -> bool:
    """Whether the columns were taken from the stored data."""
    return schema.options.get(keys.EXTERNAL_SCHEMA_ON_READ) == "true"


def source_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those options of a definition that are passed to the format, under its own names."""
    return {
        key.removeprefix(_OPTION_PREFIX): value
        for key, value in options.items()
        if key.startswith(_OPTION_PREFIX)
    }


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options that are for a format, under their stored names, and the other ones."""
    opening = {key: value for key, value in options.items() if key.startswith(_OPTION_PREFIX)}
    return opening, {key: value for key, value in options.items() if key not in opening}


def given_options(schema: TableSchema) -> dict[str, str]:
    """The options that the creator gave, without those that SQL clauses express."""
    return {key: value for key, value in schema.options.items() if key not in _IMPLIED}


# -- creating a definition -------------------------------------------------------------------------


def external_schema(
    fields: Sequence[Field],
    primary_key: Sequence[str],
    options: Mapping[str, str],
    *,
    format_: str,
    location: str,
    on_read: bool,
    comment: str | None,
    time_millis: int,
) -> tuple[TableSchema, list[str]]:
    """The first schema of an external table, and warnings about it.

    REQUIRES: `options` and `location` were checked. Raises `InvalidError` for keys that cannot work
    (rules R9 to R13 of docs/semantics.md).
    """
    stored = dict(options) | {
        keys.TYPE: EXTERNAL_TABLE,
        keys.EXTERNAL_FORMAT: format_,
        keys.EXTERNAL_LOCATION: location,
        keys.PRIMARY_KEY_NULLABLE: "true",  # rule R12: other engines may have written NULL there
    }
    if on_read:
        stored[keys.EXTERNAL_SCHEMA_ON_READ] = "true"
    watermark = TableOptions.parse(options).watermark_key
    if watermark:
        stored[keys.SEQUENCE_FIELD] = ",".join(watermark)
    schema = TableSchema.create(
        fields, primary_keys=primary_key, options=stored, comment=comment, time_millis=time_millis
    )
    return schema, _checked(schema)


def with_fields(
    schema: TableSchema, fields: Sequence[Field], time_millis: int
) -> tuple[TableSchema, list[str]]:
    """The next version of a definition, with the present columns of the rows.

    Raises `InvalidError` if a key column is gone.
    """
    bare = TableSchema.create(
        fields,
        primary_keys=schema.primary_keys,
        options=schema.options,
        comment=schema.comment,
        time_millis=time_millis,
    )
    made = replace(bare, id=schema.id + 1)
    return made, _checked(made)


def _checked(schema: TableSchema) -> list[str]:
    options = TableOptions.parse(schema.options)
    check_types(schema)
    check_upsert_keys(schema, options)
    if not schema.primary_keys:
        raise InvalidError("an external table requires a primary key; give one")
    refuse_same_names(schema.fields)
    return doubts_of_keys(schema, options)


def checked_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a user, under their stored names.

    Raises `InvalidError` for an option that is unknown, has a wrong value, or may be a secret,
    which is not shown. Raises `UnsupportedError` for an option that would have no effect.
    """
    refuse_secret_options(options)
    given = stored_names(options)
    for key in given:
        if key not in _TAKEN and not key.startswith((_OPTION_PREFIX, _USER_PREFIX)):
            raise UnsupportedError(
                f"'{key}' has no meaning for an external table; supported options: "
                f"{', '.join(map(repr, _TAKEN))}, and options that start with '{_OPTION_PREFIX}' "
                f"or '{_USER_PREFIX}'; remove it"
            )
    return given


# -- secrets ---------------------------------------------------------------------------------------

_SECRET = re.compile(
    r"pass(word|wd|phrase)?\b|pwd\b|secret|token|credential|private|access[_.-]?key|account[_.-]?key"
    r"|\bsas|\bsig(nature)?\b",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"://[^/@]*:[^/@]*@")
_ASSIGNED = re.compile(r"([\w.-]+)\s*=")
_WAY_OUT = (
    "set it in the environment of each reading process (PGPASSWORD or ~/.pgpass, or the "
    "variables of an object store), or pass options for the lake's own store to kt.connect(..., "
    "options=...)"
)


def refuse_secret_options(options: Mapping[str, str]) -> None:
    """Raise `InvalidError` for an option that may be or contain a secret. Secrets are not shown."""
    for key, value in options.items():
        refuse_secret(value)
        if _SECRET.search(key):
            raise InvalidError(
                f"option {key!r} can be a secret, which definitions must not contain; {_WAY_OUT}"
            )


def refuse_secret(location: str) -> None:
    """Raise `InvalidError` for a location that contains a secret. The location is not shown."""
    _, _, query = location.partition("?")
    named = _ASSIGNED.findall(query if "://" in location else location)
    if _USER_INFO.search(location) or any(map(_SECRET.search, named)):
        raise InvalidError(
            "the location or an option contains a password or another secret, which definitions "
            f"must not contain (it is not shown here); {_WAY_OUT}"
        )
