"""The order of changes of a feed: which fields of its messages give it.

Each format lists its orders as :class:`Ordering`. A component is a field of a message, or a
:class:`Derived` value such as the number of a binlog file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from keytide.base.arguments import checked_members
from keytide.feeds.epochs import EPOCH, Epoch
from keytide.types import STRING, AtomicType, DataType, Field

__all__ = ["BIGINT", "EPOCH_SOURCE", "Derived", "Ordering", "SequenceSource", "epochs_of"]

BIGINT = AtomicType("BIGINT")


@checked_members
@dataclass(frozen=True)
class SequenceSource:
    """One component of the order of changes: feed metadata that fills an ordering column.

    ``path`` leads from the root of a change to the value, with names joined by dots
    (``source.lsn``). A format can define additional paths (``binlog.file``, the number of the
    file). ``epochs`` belong to the path ``epoch``: the logs of the source in their order.
    """

    path: str
    column: str
    type: DataType = STRING
    epochs: tuple[Epoch, ...] = ()

    def to_field(self) -> Field:
        """The ordering column as a column of the table. NULL is allowed, and lowest."""
        return Field(-1, self.column, self.type)


EPOCH_SOURCE = SequenceSource(EPOCH, "_epoch", AtomicType("INT"))
"""The first component of orders by positions: a log, because positions restart in another one."""


def epochs_of(sequence: Iterable[SequenceSource]) -> tuple[Epoch, ...]:
    """The epochs that number changes, none if the order does not begin with them."""
    return next((source.epochs for source in sequence if source.path == EPOCH), ())


@dataclass(frozen=True)
class Derived:
    """A value that is computed from fields of a message. ``sql`` uses the names of ``members``,
    which are JSON pointers into the change."""

    sql: str
    members: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Ordering:
    """One order of a format, for feeds whose messages have one of the fields ``known_by``.

    ``refusal`` says why the fields do not give an order, and what to do.
    """

    known_by: tuple[str, ...]
    sources: tuple[SequenceSource, ...]
    refusal: str | None = None
