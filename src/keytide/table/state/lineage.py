"""Looks at a table: which schema and which snapshot are the newest.

Numbers of schemas and snapshots come back: after a drop, a rollback or a fast-forward. But nothing
is taken back without what came after it. So a process that finds the newest ones that it knew as
they were knows those before them too, and what came since is found by probing on, in one round of
requests. What belongs together so is a *lineage*; where the newest ones have changed, another one
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

from cachetools import LRUCache

from keytide.store import Store
from keytide.table.state.commits import SCHEMAS, Commits, Found, newest_of

__all__ = [
    "Known",
    "Lineage",
    "Seen",
    "advance",
    "forget_lineages",
    "known_newest",
    "last_seen",
    "lineage_of",
    "look_at",
]

_TABLES_MAX = 4096


@dataclass(frozen=True, eq=False)
class Lineage:
    """Schemas and snapshots of a table that belong together. Told apart by identity."""


@dataclass(frozen=True)
class Seen:
    """The newest schema and snapshot of a table; None where there is none.

    `schemas` and `snapshots` are all that were read to find them, ascending. `has_moved` tells
    whether others had changed the table since the look before.
    """

    lineage: Lineage
    schemas: tuple[Found, ...] = ()
    snapshots: tuple[Found, ...] = ()
    has_moved: bool = False

    @property
    def schema(self) -> Found | None:
        """The newest schema."""
        return self.schemas[-1] if self.schemas else None

    @property
    def snapshot(self) -> Found | None:
        """The newest snapshot."""
        return self.snapshots[-1] if self.snapshots else None


@dataclass(frozen=True)
class Known:
    """Which snapshots a process may remember: those of a lineage up to the newest it has seen.

    Of later ones nobody knows: they may be taken back, and their ids come back, with no look to
    tell it.
    """

    lineage: Lineage
    newest_id: int

    @classmethod
    def of(cls, seen: Seen) -> Known:
        """What a look tells; 0 is before the first snapshot."""
        return cls(seen.lineage, 0 if seen.snapshot is None else seen.snapshot.number)


def look_at(store: Store, commits: Commits) -> Seen:
    """What is newest of the table that a store is rooted at.

    One round of requests where this process has seen the table before, two where it has not.
    Raises `DataError` where the store fails.
    """
    before = last_seen(store)
    calls: list[Callable[[], Sequence[Found]]] = [
        partial(newest_of, store, SCHEMAS, before.schema),
        partial(commits.newest, store, before.snapshot),
    ]
    schemas, snapshots = store.together(calls)
    # Of a table that was not seen before, nobody can tell whether what is remembered is this one's.
    has_schema = before.schema is not None and before.schema in schemas
    goes_on = has_schema and (before.snapshot is None or before.snapshot in snapshots)
    lineage = before.lineage if goes_on else Lineage()
    seen = Seen(lineage, tuple(schemas), tuple(snapshots), _has_moved(before, schemas, snapshots))
    _remember(store, seen)
    return seen


def _has_moved(before: Seen, schemas: Sequence[Found], snapshots: Sequence[Found]) -> bool:
    if before.schema is None:
        return False
    return [before.schema] != [*schemas[-1:]] or [*before.snapshots[-1:]] != [*snapshots[-1:]]


def known_newest(store: Store) -> Found | None:
    """The newest snapshot when this process looked last."""
    return last_seen(store).snapshot


def lineage_of(store: Store) -> Lineage:
    """The lineage in which this process has seen a table last."""
    return last_seen(store).lineage


def advance(store: Store, lineage: Lineage, made: Found) -> None:
    """Take note of a snapshot that this process made on top of what it had seen."""
    known = last_seen(store)
    if known.lineage is lineage:
        _remember(store, replace(known, snapshots=(made,)))


def forget_lineages() -> None:
    """Have seen no table yet, as a process that has just begun."""
    with _LOCK:
        _SEEN.clear()


# -- what was seen last ----------------------------------------------------------------------------

_SEEN: LRUCache[Hashable, Seen] = LRUCache(_TABLES_MAX)
_LOCK = Lock()


def last_seen(store: Store) -> Seen:
    """What the last look at a table saw; nothing where this process has not looked yet."""
    with _LOCK:
        return _SEEN.setdefault(store.identity, Seen(Lineage()))


def _remember(store: Store, seen: Seen) -> None:
    newest = replace(seen, schemas=seen.schemas[-1:], snapshots=seen.snapshots[-1:])
    with _LOCK:
        known = _SEEN.get(store.identity)
        # A look that began earlier may end later.
        if known is None or known.lineage is not seen.lineage or _is_behind(known, newest):
            _SEEN[store.identity] = newest


def _is_behind(known: Seen, seen: Seen) -> bool:
    return _numbers(known) <= _numbers(seen)


def _numbers(seen: Seen) -> tuple[int, int]:
    return (
        -1 if seen.snapshot is None else seen.snapshot.number,
        -1 if seen.schema is None else seen.schema.number,
    )
