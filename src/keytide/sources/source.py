"""Sources of row versions: a folder, a Delta or Iceberg table, a database.

A source is opened once per statement. The result, a `PinnedSource`, is one version of the data:
columns, and parts that can be read independently and anywhere. A part can be a file, a range of
files or a query.

The order of arrival decides between equal watermarks (rule R2 of docs/semantics.md). So a source
provides it if it knows it: from Delta versions or Iceberg sequence numbers, but never from the
times or names of files (R3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.predicate.predicate import Predicate
from keytide.store import Store


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
