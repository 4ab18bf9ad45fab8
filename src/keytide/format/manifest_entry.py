"""Manifest entries, one for each data file, with the member names of the format.

Entries are also available as columns. Most of many entries are excluded by a few of their members,
and only the remaining ones are created as objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import repeat
from operator import attrgetter
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass, fields
from keytide.base.process import cached_property, without_collection
from keytide.format.stats import SimpleStats

# -- the entry of a data file ----------------------------------------------------------------------


Identity = tuple[bytes, int, int, str, tuple[str, ...], bytes | None, str | None]


class FileKind(IntEnum):
    """Whether an entry adds or deletes its file. The format calls this the kind of the entry.

    Persisted, so it must not change.
    """

    ADD = 0
    DELETE = 1


class FileSource(IntEnum):
    """What wrote a data file. Persisted, so it must not change."""

    APPEND = 0
    COMPACT = 1


@dataclass(frozen=True, slots=True)
class DataFileMeta:
    """One data file, with the member names of the format.

    - `file_size` is exact and in bytes.
    - `row_count` includes retractions. `delete_row_count` counts only those (None: unknown, merge
      to be safe).
    - `min_key` and `max_key` are the exact first and last key as binary rows of the trimmed primary
      key.
    - `value_stats_cols` names the columns of `value_stats`. None means all.
    - `creation_time` is the writer's local time, in epoch milliseconds as if it were UTC.
    - `embedded_file_index` and `extra_files` belong to the identity.
    """

    file_name: str
    file_size: int
    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: SimpleStats
    value_stats: SimpleStats
    min_sequence_number: int
    max_sequence_number: int
    schema_id: int
    level: int
    extra_files: tuple[str, ...] = ()
    creation_time: int | None = None
    delete_row_count: int | None = None
    embedded_file_index: bytes | None = None
    file_source: int | None = None
    value_stats_cols: tuple[str, ...] | None = None
    external_path: str | None = None
    first_row_id: int | None = None
    write_cols: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A data file that is added to or deleted from a bucket.

    `partition` is the binary row of the partition columns. `total_buckets` is the number of buckets
    of the partition when the file was written: -1 dynamic, -2 postponed.
    """

    kind: FileKind
    partition: bytes
    bucket: int
    total_buckets: int
    file: DataFileMeta

    @property
    def identity(self) -> Identity:
        """Two entries with the same identity are about the same file."""
        file = self.file
        return (
            self.partition,
            self.bucket,
            file.level,
            file.file_name,
            file.extra_files,
            file.embedded_file_index,
            file.external_path,
        )


# -- entries as columns ----------------------------------------------------------------------------


Mask = npt.NDArray[np.bool_]

FEW_ENTRIES = 200
"""Creating so many as objects takes less time than a query of their columns."""
# Up to this number, creating each list takes less time than looking whether all have one length.
_FEW_LISTS = 100


class Entries(Sequence[ManifestEntry]):
    """Entries in order, as columns, as objects, or both. Each form is created on demand.

    Immutable and picklable. Equal to any sequence of the same entries.
    """

    def __init__(self, columns: pl.DataFrame | None, made: tuple[ManifestEntry, ...] | None = None):
        self._columns = columns
        if made is not None:
            self.made = made

    @classmethod
    def of(cls, entries: Iterable[ManifestEntry]) -> Entries:
        """Entries that exist as objects."""
        return entries if isinstance(entries, Entries) else cls(None, tuple(entries))

    @classmethod
    def stored(cls, members: pl.DataFrame) -> Entries:
        """The entries of a manifest, given their members in stored form."""
        columns = members.unnest("_FILE").unnest("_KEY_STATS", "_VALUE_STATS", separator=".")
        return cls(columns.with_columns(pl.col("_CREATION_TIME").to_physical()))

    @classmethod
    def together(cls, parts: Sequence[Entries]) -> Entries:
        """The entries of several parts, in order."""
        if len(parts) == 1:
            return parts[0]
        columns = [part._columns for part in parts if part._columns is not None]
        if columns and len(columns) == len(parts) and not all("made" in p.__dict__ for p in parts):
            return cls(pl.concat(columns))
        return cls(None, tuple(entry for part in parts for entry in part.made))

    @cached_property
    def made(self) -> tuple[ManifestEntry, ...]:
        """The entries as objects."""
        assert self._columns is not None
        with without_collection():
            return tuple(_entries(self._columns))

    def column(self, name: str) -> pl.Series:
        """A member of each entry, by its name in the format, which must be one of `_GETTERS`."""
        if self._columns is not None:
            return self._columns[name]
        get, type_ = _GETTERS[name]
        return pl.Series(name, list(map(get, self.made)), type_)

    def columns(self, *names: str) -> pl.DataFrame:
        """Several members."""
        return pl.DataFrame([self.column(name) for name in names])

    def filter(self, kept: Mask | pl.Series) -> Entries:
        """The entries for which `kept` is true."""
        mask = kept.to_numpy() if isinstance(kept, pl.Series) else kept
        if mask.all():
            return self
        is_made = "made" in self.__dict__ or len(self) <= FEW_ENTRIES
        if self._columns is not None and not is_made:
            return Entries(self._columns.filter(pl.Series(mask)))
        return Entries.of(self.made[place] for place in np.flatnonzero(mask).tolist())

    def are(self, identities: Collection[Identity]) -> Mask:
        """Which of the entries have one of the identities."""
        if len(self) <= FEW_ENTRIES:
            return np.array([entry.identity in identities for entry in self], np.bool_)
        names = {identity[3] for identity in identities}
        found = self.column("_FILE_NAME").is_in(names)
        places = [
            place
            for place, entry in zip(found.arg_true(), self.filter(found), strict=True)
            if entry.identity in identities
        ]
        mask = np.zeros(len(self), np.bool_)
        mask[places] = True
        return mask

    def __len__(self) -> int:
        return len(self.made) if self._columns is None else self._columns.height

    def __iter__(self) -> Iterator[ManifestEntry]:
        return iter(self.made)

    @overload
    def __getitem__(self, place: int) -> ManifestEntry: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[ManifestEntry, ...]: ...
    def __getitem__(self, place: int | slice) -> ManifestEntry | tuple[ManifestEntry, ...]:
        return self.made[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.made == tuple(other)

    def __hash__(self) -> int:
        return hash(self.made)

    def __repr__(self) -> str:
        return f"Entries({list(self.made)!r})"


NO_ENTRIES = Entries.of(())


def without_pairs(entries: Entries, *, forget: bool = False) -> Mask:
    """Which entries are left when an add and a delete of the same identity cancel each other.

    A delete whose add is elsewhere is left. Otherwise the file would come back. If there is no
    elsewhere, `forget` drops it.
    """
    is_add = (entries.column("_KIND") == FileKind.ADD).to_numpy()
    left = is_add.copy() if forget else np.ones(len(entries), np.bool_)
    # Entries with the same identity have the same file name.
    doubtful = entries.column("_FILE_NAME").is_duplicated()
    places = doubtful.arg_true().to_numpy()
    by_kind: tuple[dict[Identity, int], dict[Identity, int]] = ({}, {})
    for place, entry in zip(places.tolist(), entries.filter(doubtful), strict=True):
        by_kind[entry.kind][entry.identity] = place
    added, deleted = by_kind
    left[places] = False
    left[[place for identity, place in added.items() if identity not in deleted]] = True
    if not forget:
        left[[place for identity, place in deleted.items() if identity not in added]] = True
    return left


def is_live(entries: Entries) -> Mask:
    """Which of all entries of a snapshot add a live file."""
    return without_pairs(entries, forget=True)


_GETTERS: dict[str, tuple[Callable[[ManifestEntry], Any], pl.DataType | type[pl.DataType]]] = {
    "_KIND": (attrgetter("kind"), pl.Int32),
    "_PARTITION": (attrgetter("partition"), pl.Binary),
    "_BUCKET": (attrgetter("bucket"), pl.Int32),
    "_TOTAL_BUCKETS": (attrgetter("total_buckets"), pl.Int32),
    "_FILE_NAME": (attrgetter("file.file_name"), pl.String),
    "_FILE_SIZE": (attrgetter("file.file_size"), pl.Int64),
    "_ROW_COUNT": (attrgetter("file.row_count"), pl.Int64),
    "_MIN_KEY": (attrgetter("file.min_key"), pl.Binary),
    "_MAX_KEY": (attrgetter("file.max_key"), pl.Binary),
    "_KEY_STATS._MIN_VALUES": (attrgetter("file.key_stats.min_values"), pl.Binary),
    "_KEY_STATS._MAX_VALUES": (attrgetter("file.key_stats.max_values"), pl.Binary),
    "_MAX_SEQUENCE_NUMBER": (attrgetter("file.max_sequence_number"), pl.Int64),
    "_SCHEMA_ID": (attrgetter("file.schema_id"), pl.Int64),
    "_LEVEL": (attrgetter("file.level"), pl.Int32),
    "_CREATION_TIME": (attrgetter("file.creation_time"), pl.Int64),
}
_STATS = ("_MIN_VALUES", "_MAX_VALUES", "_NULL_COUNTS")
_STATS_MEMBERS = ("_KEY_STATS", "_VALUE_STATS")
_ENTRY = ("_KIND", "_PARTITION", "_BUCKET", "_TOTAL_BUCKETS")
_FILE_BEFORE_STATS = ("_FILE_NAME", "_FILE_SIZE", "_ROW_COUNT", "_MIN_KEY", "_MAX_KEY")
_FILE_AFTER_STATS = (
    "_MIN_SEQUENCE_NUMBER",
    "_MAX_SEQUENCE_NUMBER",
    "_SCHEMA_ID",
    "_LEVEL",
    "_EXTRA_FILES",
    "_CREATION_TIME",
    "_DELETE_ROW_COUNT",
    "_EMBEDDED_FILE_INDEX",
    "_FILE_SOURCE",
    "_VALUE_STATS_COLS",
    "_EXTERNAL_PATH",
    "_FIRST_ROW_ID",
    "_WRITE_COLS",
)
_KINDS = {int(kind): kind for kind in FileKind}

_Made = TypeVar("_Made")


def _entries(columns: pl.DataFrame) -> list[ManifestEntry]:
    """The entries of some columns, created one member at a time."""

    def members(names: Iterable[str]) -> Iterator[Iterable[Any]]:
        return (_values(columns[name]) for name in names)

    count = columns.height
    kinds, *of_entries = members(_ENTRY)
    key_stats, value_stats = (
        _filled(SimpleStats, count, members(f"{name}.{part}" for part in _STATS))
        for name in _STATS_MEMBERS
    )
    before, after = members(_FILE_BEFORE_STATS), members(_FILE_AFTER_STATS)
    files = _filled(DataFileMeta, count, [*before, key_stats, value_stats, *after])
    kinds = map(_KINDS.__getitem__, kinds)
    return _filled(ManifestEntry, count, [kinds, *of_entries, files])


def _filled(made: type[_Made], count: int, members: Iterable[Iterable[Any]]) -> list[_Made]:
    """Instances of a dataclass with slots. The members are in the order of its fields.

    Takes a fraction of the time of as many constructor calls.
    """
    values = [object.__new__(made) for _ in range(count)]
    for field, column in zip(fields(made), members, strict=True):  # type: ignore[arg-type]
        assign = getattr(made, field.name).__set__
        deque(map(assign, values, column), maxlen=0)
    return values


def _values(column: pl.Series) -> Iterable[Any]:
    """The values of a column. Lists become tuples."""
    if column.null_count() == len(column):
        return repeat(None)
    if not isinstance(column.dtype, pl.List):
        return column.to_list()
    if len(column) <= _FEW_LISTS:
        return (None if found is None else tuple(found) for found in column.to_list())
    lengths = column.list.len().unique()
    if len(lengths) > 1 or lengths.null_count():
        return (None if found is None else tuple(found) for found in column.to_list())
    length = int(lengths[0])
    # Each list has the same length: one list of all values is created much faster than many lists.
    return zip(*[iter(column.explode().to_list())] * length, strict=True) if length else repeat(())
