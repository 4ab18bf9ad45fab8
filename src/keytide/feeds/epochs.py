"""Epochs of a feed and the order of its changes: the logs in which its source counted.

Positions are comparable within one log. After a failover, a restore or a reset of the logs, the
source counts again, so positions say nothing about the order of old and new changes. Each such log
is an epoch, and a change belongs to the last epoch that its message fits.

An epoch is written as the base name of its log files, `mysql-bin`, or `*` for a source without
names. It can be limited to servers, `mysql-bin@1+2`, and to changes from a time on, `mysql-bin
since 2026-11-28T10:00:00Z`.

Each format lists the orders of its changes as :class:`Ordering`. A component is a field of a
message, or a :class:`Derived` value such as the number of a binlog file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from types import MappingProxyType

import polars as pl

from keytide.base.arguments import checked_members
from keytide.base.dataclass import dataclass, field
from keytide.errors import InvalidError
from keytide.types import STRING, AtomicType, DataType, Field

# -- epochs ----------------------------------------------------------------------------------------


EPOCH = "epoch"
LOG, SERVER, TIME = "place.log", "place.server", "place.time"
NUMBER, POSITION = "place.number", "place.position"
EPOCH_PATHS = (LOG, SERVER, TIME)
"""The fields that tell the epoch of a change: base name of its log, server, and time in
milliseconds. NULL if a message does not have one."""
PLACE_PATHS = (*EPOCH_PATHS, NUMBER, POSITION)
"""The same, and the place in its log: number of the file, and position, or only a number."""

ANY_LOG = "*"
"""The name of an epoch of a source whose logs have no names."""
_PATTERN = re.compile(
    r"(?P<log>[^@\s]+)(@(?P<servers>\d+(\+\d+)*))?(\s+since\s+(?P<since>\S.*))?", re.IGNORECASE
)


@dataclass(frozen=True)
class Epoch:
    """One log of a source. No `servers` means all, and no `since` (milliseconds) all times."""

    log: str = ANY_LOG
    servers: frozenset[str] = frozenset()
    since: int | None = None

    @classmethod
    def parse(cls, text: str) -> Epoch:
        """Parse the form of the module's docstring. Raises `InvalidError` for anything else."""
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise InvalidError(
                f"epoch {text!r}: expected the name of a log such as mysql-bin, mysql-bin@1 for "
                "server 1, or 'mysql-bin since 2026-11-28T10:00:00Z'"
            )
        servers = frozenset(match["servers"].split("+")) if match["servers"] else frozenset()
        since = None if match["since"] is None else _millis(match["since"], text)
        return cls(match["log"], frozenset(servers), since)

    @property
    def text(self) -> str:
        """The form that `parse` reads."""
        of = f"@{'+'.join(sorted(self.servers, key=int))}" if self.servers else ""
        if self.since is None:
            return f"{self.log}{of}"
        moment = datetime.fromtimestamp(self.since / 1000, timezone.utc)
        since = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f"{self.log}{of} since {since}"


def parse_epochs(texts: Iterable[str]) -> tuple[Epoch, ...]:
    """Parse several epochs. Raises `InvalidError` for an invalid one, and for repeated ones."""
    epochs = tuple(map(Epoch.parse, texts))
    for epoch in epochs:
        if epochs.count(epoch) > 1:
            raise InvalidError(
                f"epoch {epoch.text!r} is given twice; add the time from which the second one "
                f"counts: '{epoch.text} since 2026-11-28T10:00:00Z'"
            )
    return epochs


def extended(known: Sequence[Epoch], given: Sequence[Epoch], table: str) -> tuple[Epoch, ...]:
    """The epochs of a table after new ones were given. Raises `InvalidError` if the known ones are
    not the first of them, because stored rows are numbered by them.
    """
    is_same = len(known) <= len(given) and all(
        one.log == other.log and one.since == other.since and one.servers <= other.servers
        for one, other in zip(known, given, strict=False)
    )
    if given and not is_same:
        raise InvalidError(
            f"table {table} has the epochs {_shown(known)}, and its rows are numbered by them; "
            f"found {_shown(given)}; give all of them in this order, and then the new ones"
        )
    return tuple(given or known)


def epoch_numbers(events: pl.DataFrame, epochs: Sequence[Epoch]) -> pl.Series:
    """The number of each event's epoch, from 1, NULL if that is unknown. `events` has the columns
    of `EPOCH_PATHS`.

    A change without a server, such as a row of a snapshot, is placed by its time in logs with the
    same name.
    """
    log, server, number = pl.col(LOG), pl.col(SERVER), pl.lit(None, dtype=pl.Int32)
    for place, epoch in enumerate(epochs, start=1):
        fits = pl.lit(value=True) if epoch.log == ANY_LOG else log.is_null() | (log == epoch.log)
        if epoch.servers:
            fits &= server.is_null() | server.is_in(sorted(epoch.servers))
        if epoch.since is not None:
            # The time only decides between logs that nothing else tells apart.
            since = (pl.col(TIME) >= epoch.since).fill_null(value=False)
            fits &= since | (server.is_not_null() if epoch.servers else pl.lit(value=False))
        fits = fits.fill_null(value=False)
        if place > 1 and epoch.log != ANY_LOG:  # a row without a log precedes the stream
            fits &= log.is_not_null()
        is_one_of_several = any(epoch.log == other.log for other in epochs[: place - 1])
        is_certain = pl.lit(epoch.since is not None or not is_one_of_several) | server.is_not_null()
        here = pl.when(is_certain).then(pl.lit(place, dtype=pl.Int32))
        number = pl.when(fits).then(here).otherwise(number)
    return events.select(number.alias(EPOCH)).to_series()


def why_without_epoch(epochs: Sequence[Epoch]) -> pl.Expr:
    """The reason to refuse a change that is in no epoch."""
    server = pl.format(" of server {}", SERVER)
    return pl.format(
        f"order: log {{}}{{}} is in no known epoch ({_shown(epochs)}), so its place is unknown; "
        "name the epochs in their order",
        pl.col(LOG).fill_null("without a name"),
        pl.when(pl.col(SERVER).is_null()).then(pl.lit("")).otherwise(server),
    )


def _shown(epochs: Sequence[Epoch]) -> str:
    return ", ".join(epoch.text for epoch in epochs) or "none"


def _millis(text: str, epoch: str) -> int:
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError as error:
        raise InvalidError(
            f"epoch {epoch!r}: {text!r} is not a time such as 2026-11-28T10:00:00Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1000)


# -- the order of changes --------------------------------------------------------------------------


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
