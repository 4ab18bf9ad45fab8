"""Looks at a table: which schema and which snapshot are the newest.

Numbers of schemas and snapshots come back: after a drop, a rollback or a fast-forward. But nothing
is taken back without what came after it. So a process that finds the newest ones that it knew as
they were knows those before them too, and what came since is found by probing on, in one round of
requests. What belongs together so is a *lineage*; where the newest ones have changed, another one
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

from cachetools import LRUCache

from keytide.errors import DataError
from keytide.format import paths
from keytide.store import Store

__all__ = ["Found", "Lineage", "Seen", "advance", "forget_lineages", "lineage_of", "look_at"]

_TABLES_MAX = 4096
# Beyond the newest number that was known, so many are asked for at a time.
_PROBES = 4
# The newest one may be taken back between a listing and its reading.
_TRIES = 5


@dataclass(frozen=True)
class Found:
    """A numbered document as it is stored."""

    number: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class Lineage:
    """Schemas and snapshots of a table that belong together. Told apart by identity."""


@dataclass(frozen=True)
class Seen:
    """The newest schema and snapshot of a table; None where there is none.

    `schemas` and `snapshots` are all that were read to find them, ascending.
    """

    lineage: Lineage
    schemas: tuple[Found, ...] = ()
    snapshots: tuple[Found, ...] = ()

    @property
    def schema(self) -> Found | None:
        """The newest schema."""
        return self.schemas[-1] if self.schemas else None

    @property
    def snapshot(self) -> Found | None:
        """The newest snapshot."""
        return self.snapshots[-1] if self.snapshots else None


def look_at(store: Store) -> Seen:
    """What is newest of the table that a store is rooted at.

    One round of requests where this process has seen the table before, two where it has not.
    Raises `DataError` where the store fails.
    """
    before = _last_seen(store)
    schemas, snapshots = store.together(
        [
            partial(_newest, store, _SCHEMAS, before.schema),
            partial(_newest, store, _SNAPSHOTS, before.snapshot),
        ]
    )
    # Of a table that was not seen before, nobody can tell whether what is remembered is this one's.
    has_schema = before.schema is not None and before.schema in schemas
    goes_on = has_schema and (before.snapshot is None or before.snapshot in snapshots)
    seen = Seen(before.lineage if goes_on else Lineage(), tuple(schemas), tuple(snapshots))
    _remember(store, seen)
    return seen


def lineage_of(store: Store) -> Lineage:
    """The lineage in which this process has seen a table last."""
    return _last_seen(store).lineage


def advance(store: Store, lineage: Lineage, made: Found) -> None:
    """Take note of a snapshot that this process made on top of what it had seen."""
    known = _last_seen(store)
    if known.lineage is lineage:
        _remember(store, replace(known, snapshots=(made,)))


def forget_lineages() -> None:
    """Have seen no table yet, as a process that has just begun."""
    with _LOCK:
        _SEEN.clear()


# -- what was seen last ----------------------------------------------------------------------------

_SEEN: LRUCache[Hashable, Seen] = LRUCache(_TABLES_MAX)
_LOCK = Lock()


def _last_seen(store: Store) -> Seen:
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


# -- finding the newest ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Family:
    """Documents of one kind, numbered in the order in which they came."""

    folder: str
    path: Callable[[int], str]
    parse: Callable[[str], int | None]
    hint: str | None = None
    """Where it is written which one is the newest, right or wrong."""
    reads_all: bool = False
    """Whether who needs the newest needs those before it too."""


_SCHEMAS = _Family(paths.schema_dir(), paths.schema_path, paths.parse_schema_name, reads_all=True)
_SNAPSHOTS = _Family(
    paths.snapshot_dir(),
    paths.snapshot_path,
    paths.parse_snapshot_name,
    hint=paths.snapshot_hint_path(paths.Hint.LATEST),
)


def _newest(store: Store, family: _Family, known: Found | None) -> list[Found]:
    """The newest document, after others that were read on the way; nothing where there is none."""
    if known is not None:
        found = _run(store, family, known.number, 1)
        if known in found:
            return _to_the_end(store, family, found)
    hinted = _hinted(store, family)
    if hinted is not None:
        found = _run(store, family, hinted, 1)
        if found:
            return _to_the_end(store, family, found)
    return _listed(store, family)


def _to_the_end(store: Store, family: _Family, found: list[Found]) -> list[Found]:
    """A document and the one after it, if it is there, and all that come after that."""
    is_open = len(found) > 1
    while is_open:
        more = _run(store, family, found[-1].number + 1, _PROBES)
        found += more
        is_open = len(more) > _PROBES
    return found


def _run(store: Store, family: _Family, first: int, more: int) -> list[Found]:
    """A document and as many as `more` that follow it, as far as there is no gap."""
    numbers = range(first, first + more + 1)
    read = store.read_present([family.path(number) for number in numbers])
    found: list[Found] = []
    for number, data in zip(numbers, read, strict=True):
        if data is None:
            break
        found.append(Found(number, data))
    return found


def _hinted(store: Store, family: _Family) -> int | None:
    if family.hint is None:
        return None
    with suppress(DataError):
        return paths.decode_hint(store.read(family.hint))
    return None


def _listed(store: Store, family: _Family) -> list[Found]:
    """The newest document by a listing, or all of them."""
    for _ in range(_TRIES):
        names = store.list_names(family.folder)
        numbers = sorted(n for name in names if (n := family.parse(name)) is not None)
        wanted = numbers if family.reads_all else numbers[-1:]
        read = store.read_present([family.path(number) for number in wanted])
        if not wanted or read[-1] is not None:
            pairs = zip(wanted, read, strict=True)
            return [Found(number, data) for number, data in pairs if data is not None]
    raise DataError(
        f"{store.uri_of(family.folder)}: each listing names a newest document that is gone when it "
        f"is read; somebody deletes there without end"
    )
