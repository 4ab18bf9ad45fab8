"""The versions of a table: snapshots, and the tags and consumers that keep them.

A snapshot is one small JSON file, and creating it is the commit. It names manifest lists for
earlier files, for the changes of this commit, and for its changelog. A long-lived changelog file
contains the same document as the snapshot that it outlives.

Reading follows the rules of the format: unknown members are ignored, and an explicit ``null`` means
absent. Writing keeps Java's member order and style.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np

from keytide.base.dataclass import dataclass, field, fields
from keytide.errors import DataError, UnsupportedError
from keytide.format.json_document import (
    INTEGER,
    TEXT,
    TEXT_BY_NAME,
    TIME,
    MemberType,
    member,
    optional_member,
    read_document,
    write_document,
)

SNAPSHOT_VERSION = 3
FIRST_SNAPSHOT_ID = 1
LAST_SNAPSHOT_ID = 2**63 - 1
BASE_PROPERTY = "keytide.base"
"""The property with the identities of a snapshot and of the one that it was made from."""
# For commits without a number: batch writes of all engines use it.
BATCH_COMMIT_IDENTIFIER = 2**63 - 1
NO_WATERMARK = -(2**63)


class CommitKind(str, Enum):
    """What a commit did. The format calls this the kind of the commit.

    Persisted, so it must not change.
    """

    APPEND = "APPEND"
    COMPACT = "COMPACT"
    OVERWRITE = "OVERWRITE"
    ANALYZE = "ANALYZE"


class Operation(str, Enum):
    """The requested row change, if there was one. Persisted, so it must not change.

    Other engines know only these. Some cannot read a snapshot with another one.
    """

    WRITE = "WRITE"
    OVERWRITE = "OVERWRITE"
    DELETE = "DELETE"
    TRUNCATE = "TRUNCATE"
    UPDATE = "UPDATE"
    MERGE = "MERGE"
    CREATE_TABLE_AS_SELECT = "CREATE_TABLE_AS_SELECT"
    REPLACE_TABLE_AS_SELECT = "REPLACE_TABLE_AS_SELECT"
    CREATE_OR_REPLACE_TABLE_AS_SELECT = "CREATE_OR_REPLACE_TABLE_AS_SELECT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table, with the member names of the format.

    File names have no directory. Sizes are in bytes, times are epoch milliseconds, and counts are
    physical rows, including duplicates and deletes. Members that are ``None`` are left out of the
    file, and so is an operation that other engines do not know. Snapshots that differ only in their
    operation are equal, because nothing depends on it.
    """

    version: int = SNAPSHOT_VERSION
    uuid: str | None = None
    id: int
    schema_id: int
    base_manifest_list: str
    base_manifest_list_size: int | None = None
    delta_manifest_list: str
    delta_manifest_list_size: int | None = None
    changelog_manifest_list: str | None = None
    changelog_manifest_list_size: int | None = None
    index_manifest: str | None = None
    commit_user: str
    writer_version: str | None = None
    commit_identifier: int
    commit_kind: CommitKind
    time_millis: int
    total_record_count: int = 0
    delta_record_count: int = 0
    changelog_record_count: int | None = None
    watermark: int | None = None
    statistics: str | None = None
    properties: Mapping[str, str] | None = None
    next_row_id: int | None = None
    operation: str | None = field(default=None, compare=False)

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Snapshot:
        """Parse a snapshot, changelog or tag file. `path` is used in messages.

        Raises DataError if the file is damaged or a member is missing or has the wrong type, and
        UnsupportedError if a later format version wrote it.
        """
        return _snapshot_from_document(read_document(data, path), path)

    @property
    def identity(self) -> str:
        """Identifies the commit. Its id may belong to another one after a rollback or a drop."""
        return self.delta_manifest_list

    @property
    def base(self) -> str | None:
        """The identity of the snapshot that this one was made from.

        None if nothing says so: it is the first, or another engine made it.
        """
        own, _, base = (self.properties or {}).get(BASE_PROPERTY, "").partition(" ")
        # Another engine may have copied the properties of an earlier snapshot.
        return base if own == self.identity and base else None

    @property
    def commit_number(self) -> int:
        """The identity as a number below 2 to the power of 63."""
        digest = hashlib.blake2b(self.identity.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    @property
    def known_watermark(self) -> int | None:
        """The watermark. None if no stream wrote one."""
        return None if self.watermark == NO_WATERMARK else self.watermark

    @property
    def has_known_operation(self) -> bool:
        """Whether every engine can read the operation as it is stored."""
        return self.operation is None or self.operation in _OPERATIONS

    def to_json(self) -> bytes:
        """The bytes of the file.

        Raises InvalidError for a member that no reader could read.
        """
        return write_document(self, _snapshot_document, Snapshot.from_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A named snapshot. `time_retained_ns` after `create_time_ns`, it may be deleted.

    `create_time_ns` is the writer's local time, in nanoseconds as if it were UTC. Without both
    times, the file is a plain copy of the snapshot.
    """

    snapshot: Snapshot
    create_time_ns: int | None = None
    time_retained_ns: int | None = None

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Tag:
        """Parse a tag file. Raises the same errors as `Snapshot.from_json`."""
        document = read_document(data, path)
        return cls(
            snapshot=_snapshot_from_document(document, path),
            create_time_ns=_create_time_ns(document.get("tagCreateTime"), path),
            time_retained_ns=_time_retained_ns(document.get("tagTimeRetained"), path),
        )

    def to_json(self) -> bytes:
        """The bytes of the file. Raises InvalidError for a member that no reader could read."""
        return write_document(self, _tag_document, Tag.from_json)


@dataclass(frozen=True, slots=True)
class Consumer:
    """The progress of a named consumer: snapshots from `next_snapshot` on must not expire.

    `told_snapshot` is the last one whose changes it has received, and `told_commit` the identity of
    that snapshot. Other engines ignore these members. Without them, it is the snapshot before the
    next.
    """

    next_snapshot: int
    told_snapshot: int | None = None
    told_commit: str | None = None

    @property
    def last_snapshot(self) -> int:
        """The last snapshot whose changes the consumer has received."""
        return self.next_snapshot - 1 if self.told_snapshot is None else self.told_snapshot

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Consumer:
        """Parse a consumer file. Raises DataError if it is damaged."""
        document = read_document(data, path)
        last = document.get("toldSnapshot")
        return cls(
            member(document, "nextSnapshot", INTEGER, path),
            None if last is None else member(document, "toldSnapshot", INTEGER, path),
            optional_member(document, "toldCommit", TEXT, path),
        )

    def to_json(self) -> bytes:
        """The bytes of the file. Raises InvalidError for a number that no reader could read."""
        return write_document(self, _consumer_document, Consumer.from_json)


def _members() -> dict[str, tuple[str, MemberType]]:
    """The member of each attribute and its allowed content, in Java's order."""
    found = {}
    for each in fields(Snapshot):
        first, *rest = each.name.split("_")
        annotation = str(each.type)
        type_ = TEXT
        if each.name == "time_millis":
            type_ = TIME
        elif annotation.startswith("int"):
            type_ = INTEGER
        elif annotation.startswith("Mapping"):
            type_ = TEXT_BY_NAME
        found[each.name] = (first + "".join(part.capitalize() for part in rest), type_)
    return found


_MEMBERS = _members()
_OPERATIONS = frozenset(each.value for each in Operation)
_REQUIRED = frozenset(
    {
        "version",
        "id",
        "schema_id",
        "base_manifest_list",
        "delta_manifest_list",
        "commit_user",
        "commit_identifier",
        "commit_kind",
        "time_millis",
    }
)


def _snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    values = {stored: getattr(snapshot, name) for name, (stored, _) in _MEMBERS.items()}
    if not snapshot.has_known_operation:
        values["operation"] = None
    return {
        stored: value.value if isinstance(value, CommitKind) else value
        for stored, value in values.items()
        if value is not None
    }


def _consumer_document(consumer: Consumer) -> dict[str, Any]:
    members = {
        "nextSnapshot": consumer.next_snapshot,
        "toldSnapshot": consumer.told_snapshot,
        "toldCommit": consumer.told_commit,
    }
    return {name: value for name, value in members.items() if value is not None}


def _tag_document(tag: Tag) -> dict[str, Any]:
    document = _snapshot_document(tag.snapshot)
    if tag.create_time_ns is not None:
        # ``[year, month, day, hour, minute, second, nanos]`` without zeros after the minute.
        seconds, nanos = divmod(tag.create_time_ns, _NS_PER_SECOND)
        time = _EPOCH + timedelta(seconds=seconds)
        parts = [time.year, time.month, time.day, time.hour, time.minute, time.second, nanos]
        while len(parts) > 5 and parts[-1] == 0:
            parts.pop()
        document["tagCreateTime"] = parts
    if tag.time_retained_ns is not None:
        document["tagTimeRetained"] = Decimal(tag.time_retained_ns).scaleb(-9)
    return document


def is_based_on(snapshot: Snapshot, before: Snapshot) -> bool:
    """Whether nothing says that a snapshot was made from another one than the one before it.

    If it was, a rollback removed that one, and this one is not part of the table.
    """
    return snapshot.base in (None, before.identity)


def _snapshot_from_document(document: Mapping[str, Any], path: str) -> Snapshot:
    version = member(document, "version", INTEGER, path)
    if version > SNAPSHOT_VERSION:
        raise UnsupportedError(
            f"{path}: format version {version} is newer than {SNAPSHOT_VERSION}, the latest that "
            "this release reads; upgrade Keytide"
        )
    values: dict[str, Any] = {}
    for name, (stored, type_) in _MEMBERS.items():
        if name in _REQUIRED or document.get(stored) is not None:
            values[name] = member(document, stored, type_, path)
    kind = values["commit_kind"]
    known = [each.value for each in CommitKind]
    if kind not in known:
        raise UnsupportedError(
            f"{path}: commitKind {kind!r} is not one of {', '.join(known)}; use a newer release "
            "for this table"
        )
    return Snapshot(**values | {"commit_kind": CommitKind(kind)})


_EPOCH = datetime(1970, 1, 1)
_NS_PER_SECOND = 1_000_000_000
# Java stores the seconds of a duration in 64 bits.
_DURATION_SECONDS_MAX = 2**63
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{0,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


def _create_time_ns(value: Any, path: str) -> int | None:
    try:
        if value is None:
            return None
        if isinstance(value, list):
            time, nanos = datetime(*value[:6]), sum(value[6:])
            return (time - _EPOCH) // timedelta(seconds=1) * _NS_PER_SECOND + nanos
        return int(np.datetime64(value, "ns").astype(np.int64))
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: member 'tagCreateTime' is not a time: {value!r}") from error


def _time_retained_ns(value: Any, path: str) -> int | None:
    if value is None:
        return None
    is_number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if is_number and abs(value) <= _DURATION_SECONDS_MAX:
        return int(value * _NS_PER_SECOND)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not any(match.groups()):
        raise DataError(f"{path}: member 'tagTimeRetained' is not a duration: {value!r}")
    weights = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
    parts = match.groupdict(default="0")
    seconds = sum(Decimal(parts[unit]) * weight for unit, weight in weights.items())
    return int(seconds * _NS_PER_SECOND)
