"""Where versions of rows lie that others wrote: a folder, a Delta or an Iceberg table, a database.

A source is opened once for a statement. What it is then, `PinnedSource`, is one version of what
lies there: columns, and parts that can be read anywhere, each by itself. Whether a part is a file,
a range of files or a query is the source's affair.

The order in which versions arrived decides between equal watermarks (rule R2 of
docs/semantics.md), so a source tells it where it knows it: from the versions of a Delta table or
the sequence numbers of Iceberg, never from the times or names of files (R3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from keytide.store import Store
from keytide.table.conditions.predicate import Predicate

__all__ = [
    "AppendableSource",
    "PinnedSource",
    "Place",
    "Source",
    "SourceOptions",
    "SourcePart",
    "in_no_order",
]


class SourcePart(Protocol):
    """Rows that are read together. Pickles, without any secret in what `repr` shows.

    `str` names them to people: a file, a query.
    """

    @property
    def rows(self) -> int | None:
        """How many rows there are, dead ones counted; None where that is not known."""
        ...

    @property
    def stored_bytes(self) -> int | None:
        """What they take where they are stored; None where that is not known."""
        ...

    @property
    def commit(self) -> int:
        """The commit that brought them: of a later one the number is higher.

        0 for all parts of a source whose commits are in no order.
        """
        ...

    @property
    def is_in_order(self) -> bool:
        """Whether rows of this part came in the order in which they lie.

        Not in files that another engine put together of older ones, nor where there is no order.
        """
        ...

    def batches(
        self, columns: Sequence[str], about_key: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are not deleted there, in their order, about `rows_max` at a time.

        They have these columns, in this order, in the types of `PinnedSource.schema`. Rows that do
        not meet `about_key` may be left out; it names columns of the primary key alone. Raises
        `DataError` naming what cannot be read.
        """
        ...


def in_no_order(part: SourcePart) -> SourcePart:
    """The part, of whose rows nobody knows which came later in their commit."""
    return replace(part, is_in_order=False)  # type: ignore[type-var]  # parts are dataclasses


class PinnedSource(Protocol):
    """One version of what lies there."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, partition columns among them, in types that Keytide's tables can have."""
        ...

    @property
    def version(self) -> str | None:
        """What people call this version; None where there are no versions."""
        ...

    @property
    def cut_by(self) -> Sequence[str]:
        """The columns by whose values the rows of one commit lie in several parts.

        Of rows that differ in one of them nobody knows which came later in their commit.
        """
        ...

    def parts(self, about_key: Predicate | None = None) -> Sequence[SourcePart]:
        """The parts, by ascending commit and, in one commit, in the order in which they came.

        Those may be left out of which it is known that no row meets `about_key`.
        """
        ...


class AppendableSource(PinnedSource, Protocol):
    """One version of a table to which rows can be appended."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What the table says of itself; nothing where tables say nothing."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """The columns that take no NULL there."""
        ...

    @property
    def tells_order(self) -> bool:
        """Whether rows that are appended now are known to be later than those that are there."""
        ...


class Source(Protocol):
    """Something that lies at a location."""

    @property
    def location(self) -> str:
        """Where it is, for messages: without any secret."""
        ...

    def pin(self, version: str | int | None = None) -> PinnedSource:
        """What is there now, or was at a version: one look.

        Raises `NotFoundError` where nothing is there, or no such version; `UnsupportedError` naming
        what this release cannot read, `DataError` for what is damaged or does not answer,
        `SetupError` naming the extra that is not installed. No message shows a secret.
        """
        ...


SourceOptions = Mapping[str, str]
"""What a definition says of how to open a source, as it is stored: without secrets."""


@dataclass(frozen=True)
class Place:
    """Where a source is to be opened, and by what.

    `near` is the lake's own store, whose options count where the location is in the same bucket.
    `columns` are those that a definition has, in its types, for formats that know none by
    themselves; None where the source is to tell them.
    """

    location: str
    options: SourceOptions
    near: Store
    columns: pa.Schema | None = None
