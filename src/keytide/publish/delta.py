"""Publications as Delta Lake: a log over the table's data files, which is kept short.

`_delta_log/` references data files of the table, and its own files with deletion vectors. The
published table has no partition columns: readers that take their values from folder names would
read the spellings of the format. Statistics prune partitions equally well, because they are exact
for partition columns.

Readers that match columns by name may read old files wrongly, which is checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

from keytide.base.dataclass import dataclass
from keytide.definition.checks import DELTA
from keytide.errors import DataError
from keytide.format.delta_log import (
    LAST_CHECKPOINT,
    LOG_DIR,
    NOTHING,
    VECTOR_DIR,
    VECTOR_TAG,
    Action,
    DeltaState,
    checkpoint_path,
    commit_path,
    decode_actions,
    decode_checkpoint,
    encode_actions,
    encode_checkpoint,
    in_file,
    inline,
    parse_checkpoint_name,
    parse_commit_name,
    parse_version,
    schema_string,
    snapshot_actions,
    vector_file,
    vector_file_name,
    vector_id,
)
from keytide.format.index_files import PortableVector
from keytide.format.manifest_entry import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.publish.form import Content, digests_of, is_time_to_drop, kept_since_ms, shows, stored
from keytide.read.sections import value_bounds
from keytide.snapshot.live_files import retried
from keytide.snapshot.state import TableView
from keytide.store import Store, created
from keytide.types import AtomicType

# -- columns matched by name -----------------------------------------------------------------------


def _why_not(older: TableSchema, newer: TableSchema) -> str | None:
    before = {field.id: field for field in older.fields}
    for field in newer.fields:
        stored = before.get(field.id)
        if stored is None:
            if field.name in older.by_name:
                return f"column {field.name!r} took the name of another column"
        elif stored.name != field.name:
            return f"column {stored.name!r} was renamed to {field.name!r}"
        else:
            one, other = stored.type, field.type
            are_atomic = isinstance(one, AtomicType) and isinstance(other, AtomicType)
            group = _LENGTHS.get(one.root) if are_atomic else None
            is_longer = group is not None and group == _LENGTHS.get(other.root)
            if not is_longer and one.with_nullable(True) != other.with_nullable(True):
                return f"column {field.name!r} was {one.sql()}"
    return None


_LENGTHS = {"CHAR": "text", "VARCHAR": "text", "BINARY": "bytes", "VARBINARY": "bytes"}
"""Types that differ only in their length."""


# -- the log in a store ----------------------------------------------------------------------------


CHECKPOINT_INTERVAL = 20
"""The number of versions between two checkpoints. A reader reads at most this many small files."""

# How many numbers after the latest known version are requested at a time.
_PROBES = 4


def newest_state(store: Store) -> DeltaState | None:
    """The latest version, found by a listing of the log. None if there is no log.

    Raises `DataError` for a log with gaps, and for a damaged file.
    """
    return retried(lambda: _listed(store))


def _listed(store: Store) -> DeltaState | None:
    names = store.list_names(LOG_DIR)
    commits = {v for name in names if (v := parse_commit_name(name)) is not None}
    checkpoints = {v for name in names if (v := parse_checkpoint_name(name)) is not None}
    if not commits and not checkpoints:
        return None
    newest = max(commits | checkpoints)
    first = max(checkpoints, default=-1) + 1
    if not commits.issuperset(range(first, newest + 1)):
        raise DataError(
            f"{store.uri_of(LOG_DIR)}: commits between {first} and {newest} are missing; delete "
            "the folder, and the next publication recreates it"
        )
    files = [checkpoint_path(first - 1)] * (first > 0)
    data = store.read_all([*files, *(commit_path(v) for v in range(first, newest + 1))])
    state = NOTHING
    if first > 0:
        state = decode_checkpoint(data.pop(0), first - 1, store.uri_of(files[0]))
    for version, each in enumerate(data, start=first):
        state = state.after(version, decode_actions(each, store.uri_of(commit_path(version))))
    return state


def read_on(store: Store, known: DeltaState) -> DeltaState | None:
    """The latest version, found from a known one. None if it belongs to another table."""
    state = known
    while True:
        versions = range(state.version + 1, state.version + 1 + _PROBES)
        for version, data in zip(
            versions, store.read_present([commit_path(v) for v in versions]), strict=True
        ):
            if data is None:
                return state
            actions = decode_actions(data, store.uri_of(commit_path(version)))
            infos = [each["commitInfo"] for each in actions if "commitInfo" in each]
            if (infos[0].get("tableId") if infos else None) != known.table_id:
                return None
            state = state.after(version, actions)


# -- log retention ---------------------------------------------------------------------------------


def drop_old(store: Store, state: DeltaState, before_ms: int) -> None:
    """Delete what no reader needs that began after a time.

    Deletes the part of the log before the newest checkpoint of that age. Also deletes files with
    vectors of that age, if no file of this version, and no file removed since then, references
    them.
    """
    listed = [(info, parse_version(info.path.rpartition("/")[2])) for info in store.list(LOG_DIR)]
    old = [version for info, version in listed if version is not None
           and info.modified_ms < before_ms and info.path == checkpoint_path(version)]  # fmt: skip
    kept_from = max(old, default=0)
    gone = [info.path for info, version in listed if version is not None and version < kept_from]
    named = {f"{VECTOR_DIR}/{name}" for name in vector_files(state)}
    gone += [info.path for info in store.list(VECTOR_DIR)
             if info.modified_ms < before_ms and info.path not in named]  # fmt: skip
    store.discard(gone)


def vector_files(state: DeltaState) -> Iterator[str]:
    """The names of files with vectors that the files of a version reference, or did recently."""
    return _files_of_vectors((*state.files.values(), *state.removed))


def vector_files_of_all(store: Store) -> frozenset[str]:
    """The names of files with vectors that any existing version references.

    Raises `DataError` for a damaged part of the log.
    """
    names = store.list_names(LOG_DIR)
    logged = [n for n in names if parse_commit_name(n) is not None]
    checkpoints = [n for n in names if parse_checkpoint_name(n) is not None]
    paths = [f"{LOG_DIR}/{name}" for name in (*logged, *checkpoints)]
    found: set[str] = set()
    for path, data in zip(paths, store.read_present(paths), strict=True):
        if data is None:
            continue
        if path.endswith(".json"):
            actions = decode_actions(data, store.uri_of(path))
            found |= {*_files_of_vectors(each.get("add") or {} for each in actions)}
        else:
            found |= {*vector_files(decode_checkpoint(data, 0, store.uri_of(path)))}
    return frozenset(found)


def _files_of_vectors(actions: Iterable[Action]) -> Iterator[str]:
    for action in actions:
        vector = action.get("deletionVector")
        name = None if vector is None else vector_file_name(vector)
        if name is not None:
            yield name


# -- publications ----------------------------------------------------------------------------------


_ENGINE = "keytide"
# No writer knows this feature, so none adds files, or deletes files that the log does not reference
# as garbage. Readers do not check it.
_WRITTEN_BY_KEYTIDE_ALONE = "keytide"
# If the vectors have at most this size in total, they are stored in the log, which saves a file.
_INLINE_BYTES_MAX = 16 << 10
# Characters that libraries do not change when they join paths and URLs.
_UNQUOTED = "/=!$&'()*+,;:@"


@dataclass(frozen=True)
class DeltaForm:
    """See `Form`."""

    @property
    def name(self) -> str:
        """See `Form`."""
        return DELTA

    def why_not(self, content: Content) -> str | None:
        """See `Form`."""
        # Polars looks up the vector of a file under its name as spelled in a URL, and shows dead
        # rows if the name differs.
        places = {
            (entry.partition, entry.bucket): name
            for name, entry in content.files.items()
            if name in content.names_with_dead_rows
        }
        for name in places.values():
            path = content.path(name)
            if quote(path, safe=_UNQUOTED) != path:
                return (
                    f"{path} has deleted rows, and its path contains characters that must be "
                    "escaped in a URL, so some readers would not find the deletes"
                )

        # Why a reader that matches by name would take a stored column for another one, or for none.
        schema = content.view.schema
        for number, older in content.older_schemas.items():
            reason = _why_not(older, schema)
            if reason is not None:
                return f"files of schema {number} are from before {reason}"
        return None

    def newest(self, store: Store, known: DeltaState | None) -> DeltaState | None:
        """See `Form`."""
        found = None if known is None else read_on(store, known)
        return newest_state(store) if found is None else found

    def is_outdated(self, before: DeltaState) -> bool:
        """See `Form`: it depends on no option."""
        return False

    def draft(self, before: DeltaState | None, content: Content, now_ms: int) -> DeltaDraft | None:
        """See `Form`."""
        return _Difference(before or NOTHING, content, now_ms).draft()

    def is_there(self, store: Store, version: DeltaState) -> bool:
        """See `Form`."""
        return store.exists(commit_path(version.version))

    def take_back(self, store: Store, version: DeltaState) -> None:
        """See `Form`."""
        store.delete([commit_path(version.version)])

    def announce(self, store: Store, version: DeltaState) -> None:
        """See `Form`: readers find the last commit by themselves."""

    def tidy(self, store: Store, version: DeltaState, content: Content, now_ms: int) -> None:
        """See `Form`."""
        if version.version and version.version % CHECKPOINT_INTERVAL == 0:
            # Write a checkpoint with all versions up to this one, and the file that tells readers
            # where it is.
            data, size = encode_checkpoint(version)
            store.put(checkpoint_path(version.version), data)
            hint = {"version": version.version, "size": size, "sizeInBytes": len(data)}
            store.hint(LAST_CHECKPOINT, json.dumps(hint).encode())
            if is_time_to_drop(store, self.name):
                drop_old(store, version, kept_since_ms(content.view.options, now_ms))


@dataclass(frozen=True)
class DeltaDraft:
    """See `Draft`. `vectors` is the file with new vectors, by its path."""

    actions: Sequence[Action]
    next_state: DeltaState
    vectors: Mapping[str, bytes]

    def create(self, store: Store) -> DeltaState | None:
        """See `Draft`."""
        store.put_all(self.vectors)
        if created(store, commit_path(self.next_state.version), encode_actions(self.actions)):
            return self.next_state
        store.discard(self.vectors)
        return None


@dataclass(frozen=True)
class _Difference:
    """The difference between one version and the next."""

    before: DeltaState
    content: Content
    now_ms: int

    def draft(self) -> DeltaDraft | None:
        """The next version. None if there is no difference."""
        head, known, wanted = self._head(), self.before.by_name, self.content.files
        digests = digests_of(self.content) if self.content.names_with_dead_rows else {}
        new = [name for name in wanted
               if name not in known or vector_id(known[name]) != digests.get(name)]  # fmt: skip
        again = frozenset(new)
        gone = [add for name, add in known.items() if name not in wanted or name in again]
        is_told = shows(self.before, self.content.snapshot)
        if not head and not new and not gone and is_told:
            return None
        vectors = _NewVectors.of(self.content, [name for name in new if name in digests])
        actions = [
            self._commit_info(head),
            *head,
            *({"remove": self._removed(add)} for add in gone),
            *({"add": add} for add in self._added(new, vectors)),
            *snapshot_actions(self.content.snapshot.id, self.content.snapshot.commit_number),
        ]
        since = kept_since_ms(self.content.view.options, self.now_ms)
        after = self.before.without_removed(since).after(self.before.version + 1, actions)
        return DeltaDraft(actions, after, vectors.files)

    def _commit_info(self, head: Sequence[Action]) -> Action:
        ids = [each["metaData"]["id"] for each in head if "metaData" in each]
        snapshot = self.content.snapshot
        return {
            "commitInfo": {
                "timestamp": self.now_ms,
                "operation": "PUBLISH",
                "operationParameters": {"snapshot": str(snapshot.id)},
                "engineInfo": _ENGINE,
                # Two publishers never write the same bytes, so each recognizes its own.
                "txnId": str(uuid4()),
                "tableId": ids[0] if ids else self.before.table_id,
                "snapshotId": snapshot.id,
            }
        }

    def _head(self) -> list[Action]:
        """The actions that describe the table, if they have changed."""
        view, known = self.content.view, self.before.metadata
        features = ["deletionVectors"] if view.options.deletion_vectors_enabled else []
        columns = schema_string(view.schema.fields)
        # Readers must know of times without a time zone.
        features += ["timestampNtz"] if '"timestamp_ntz"' in columns else []
        writers = {"minWriterVersion": 7, "writerFeatures": [*features, _WRITTEN_BY_KEYTIDE_ALONE]}
        protocol: Action = {"minReaderVersion": 1, **writers}
        if features:
            protocol = {"minReaderVersion": 3, "readerFeatures": features, **writers}
        metadata = {
            "id": known.get("id") or str(uuid4()),
            "name": view.name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": columns,
            "partitionColumns": [],
            "configuration": {},
            "createdTime": known.get("createdTime", self.now_ms),
        }
        head: list[Action] = []
        if protocol != self.before.protocol:
            head.append({"protocol": protocol})
        if metadata != known:
            head.append({"metaData": metadata})
        return head

    def _removed(self, add: Action) -> Action:
        vector = {} if add.get("deletionVector") is None else {
            "deletionVector": add["deletionVector"]
        }  # fmt: skip
        return {
            "path": add["path"],
            "deletionTimestamp": self.now_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": add["size"],
            **vector,
        }

    def _added(self, new: Sequence[str], vectors: _NewVectors) -> list[Action]:
        files, before = self.content.files, self.before.by_name
        # A file with more dead rows keeps its statistics.
        stats = {name: before[name]["stats"] for name in new if "stats" in before.get(name, ())}
        unknown = [name for name in new if name not in stats]
        statistics = _statistics([files[name] for name in unknown], self.content.view)
        stats |= {
            name: json.dumps(each, separators=(",", ":"), ensure_ascii=False)
            for name, each in zip(unknown, statistics, strict=True)
        }
        return [
            {
                "path": quote(self.content.path(name), safe=_UNQUOTED),
                "partitionValues": {},
                "size": files[name].file.file_size,
                "modificationTime": files[name].file.creation_time or 0,
                "dataChange": True,
                "stats": stats[name],
                **vectors.members(name),
            }
            for name in new
        ]


@dataclass(frozen=True)
class _NewVectors:
    """The vectors of files that are new, or have more dead rows than before."""

    vectors: Mapping[str, PortableVector]
    descriptors: Mapping[str, Action]
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, content: Content, names: Sequence[str]) -> _NewVectors:
        """The vectors of some files, in the log if they are short."""
        if not names:
            return cls({}, {}, {})
        vectors = {name: PortableVector.of(each) for name, each in stored(content, names).items()}
        if sum(len(vector.data) for vector in vectors.values()) <= _INLINE_BYTES_MAX:
            return cls(vectors, {name: inline(each) for name, each in vectors.items()}, {})
        uuid: UUID = uuid4()
        data, offsets = vector_file(vectors.values())
        descriptors = {
            name: in_file(vector, uuid, offset)
            for (name, vector), offset in zip(vectors.items(), offsets, strict=True)
        }
        return cls(vectors, descriptors, {f"{VECTOR_DIR}/deletion_vector_{uuid}.bin": data})

    def members(self, name: str) -> Action:
        """What the action of a data file says about its dead rows."""
        if name not in self.vectors:
            return {}
        return {
            "tags": {VECTOR_TAG: self.vectors[name].digest},
            "deletionVector": self.descriptors[name],
        }


# -- statistics ------------------------------------------------------------------------------------


def _statistics(entries: Sequence[ManifestEntry], view: TableView) -> list[Action]:
    """What the log says about files: rows, including dead ones, and bounds of columns."""
    # Readers spell inexact numbers and times in several ways.
    fields = [
        field
        for field in view.schema.fields
        if isinstance(field.type, AtomicType) and field.type.root in _BOUNDED
    ]
    bounds = value_bounds(entries, fields, view.schemas).to_dicts() if entries and fields else []
    found: list[Action] = []
    for entry, row in zip(entries, bounds or [{}] * len(entries), strict=True):
        ends: dict[str, dict[str, Any]] = {"min": {}, "max": {}, "nulls": {}}
        for field in fields:
            for part, values in ends.items():
                value = row.get(f"{field.name}.{part}")
                if value is not None:
                    values[field.name] = value
        low, high = ends["min"], ends["max"]
        found.append(
            {
                "numRecords": entry.file.row_count,
                # Bounds of strings are truncated, and all bounds include dead rows.
                "tightBounds": False,
                "minValues": {name: _plain(value) for name, value in low.items() if name in high},
                "maxValues": {name: _plain(value) for name, value in high.items() if name in low},
                "nullCount": ends["nulls"],
            }
        )
    return found


_BOUNDED = frozenset(("TINYINT", "SMALLINT", "INT", "BIGINT", "CHAR", "VARCHAR", "DATE"))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
