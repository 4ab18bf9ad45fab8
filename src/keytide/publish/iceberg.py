"""Publications as Apache Iceberg, in the format version that an option selects.

`metadata/` references data files of the table, and its own files that mark dead rows, see
`DeadRows`. There are no partitions: bounds of columns prune equally well, because they are exact
for partition columns.

From version 3 of the format on, rows have ids. A data file keeps the ids that it got when it was
first referenced, from version to version. For rewritten rows, the format only says that they may
have other ids.

Each bucket that has dead rows has one file for them. The file is rewritten when a row of the bucket
dies, like the table's own vectors. So it mentions only live data files, and each once. Readers may
apply all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.definition.checks import ICEBERG
from keytide.errors import DataError
from keytide.format.iceberg_manifest import (
    ADDED,
    DATA,
    DELETES,
    EXISTING,
    DeleteFile,
    Entry,
    Manifest,
    decode_entries,
    decode_list,
    encode_entries,
    encode_list,
    position_deletes,
    vectors_of_deletes,
    with_row_ids,
)
from keytide.format.iceberg_metadata import (
    FIRST_WITH_ROW_IDS,
    METADATA_DIR,
    VERSION_HINT,
    IcebergState,
    bound,
    decode_metadata,
    dropped_names,
    has_bounds,
    is_promoted,
    metadata_document,
    metadata_path,
    parse_metadata_name,
    schema_json,
    why_no_column,
)
from keytide.format.index_files import Vector
from keytide.format.schema import TableSchema
from keytide.publish.form import Content, digests_of, is_time_to_drop, kept_since_ms, shows, stored
from keytide.read.sections import value_bounds
from keytide.snapshot.live_files import BucketId, retried
from keytide.store import Store, created

# -- dead rows -------------------------------------------------------------------------------------


_Encode = Callable[[str, Mapping[str, Vector]], DeleteFile]
_FILES: Mapping[int, tuple[str, _Encode]] = {
    2: ("parquet", position_deletes),
    3: ("puffin", vectors_of_deletes),
}
"""By format version: the file name extension, and the function that creates the files."""


@dataclass(frozen=True)
class DeadRows:
    """The dead rows of the content to publish, of a table at `location`."""

    content: Content
    location: str
    format_version: int

    @cached_property
    def by_digest(self) -> Mapping[str, Sequence[str]]:
        """The files with dead rows of each bucket, by a digest of the bucket's dead rows."""
        if not self.content.names_with_dead_rows:
            return {}
        digests = digests_of(self.content)
        buckets: dict[BucketId, list[str]] = {}
        for name, entry in self.content.files.items():
            if name in digests:
                buckets.setdefault((entry.partition, entry.bucket), []).append(name)
        found = {}
        for names in buckets.values():
            marks = sorted((name, digests[name]) for name in names)
            text = json.dumps([self.format_version, self.location, *marks]).encode()
            found[hashlib.blake2b(text, digest_size=12).hexdigest()] = names
        return found

    def files(self, digests: Collection[str], uuid: str) -> dict[str, DeleteFile]:
        """The delete files for these digests, by their paths in the table.

        The uuid makes the paths unique.
        """
        if not digests:
            return {}
        ending, encode = _FILES[self.format_version]
        names = {digest: self.by_digest[digest] for digest in digests}
        vectors = stored(self.content, [name for each in names.values() for name in each])
        made = {}
        for digest, of in names.items():
            path = f"{METADATA_DIR}/deletes-{digest}-{uuid}.{ending}"
            by_uri = {self._uri(self.content.path(name)): vectors[name] for name in of}
            made[path] = encode(self._uri(path), by_uri)
        return made

    def _uri(self, path: str) -> str:
        return f"{self.location}/{path}"


def digest_in(path: str) -> str:
    """The digest of a bucket's dead rows, from the name of a delete file."""
    return path.rpartition("/")[2].removeprefix("deletes-").partition("-")[0]


# -- metadata in a store ---------------------------------------------------------------------------


_PROBES = 4


def newest_state(store: Store) -> IcebergState | None:
    """The latest version, found by a listing of the metadata. None if there is none.

    Raises `DataError` for a file that is damaged or missing.
    """
    return retried(lambda: _listed(store))


def _listed(store: Store) -> IcebergState | None:
    names = store.list_names(METADATA_DIR)
    versions = [v for name in names if (v := parse_metadata_name(name)) is not None]
    if not versions:
        return None
    newest = max(versions)
    return _read(store, newest, store.read(metadata_path(newest)), ())


def read_on(store: Store, known: IcebergState) -> IcebergState | None:
    """The latest version, found from a known one. None if it belongs to another table."""
    number, data = known.version, None
    while True:
        versions = range(number + 1, number + 1 + _PROBES)
        found = store.read_present([metadata_path(v) for v in versions])
        there = [each for each in found if each is not None]
        if there:
            number, data = number + len(there), there[-1]
        if len(there) < _PROBES:
            break
    if data is None:
        return known
    state = _read(store, number, data, known.manifests)
    return state if state.table_id == known.table_id else None


def _read(store: Store, version: int, data: bytes, known: Iterable[Manifest]) -> IcebergState:
    """A version with its manifests. Known manifests are not read again."""
    uri = store.uri_of(metadata_path(version))
    state, _ = decode_metadata(data, version, uri)
    path = _own_path(store, state, state.manifest_list)
    listed = decode_list(store.read(path), state.manifest_list)
    there = {manifest.path: manifest for manifest in known}
    calls = [partial(_manifest, store, state, entry, there) for entry in listed]
    return replace(state, manifests=tuple(store.together(calls)))


def _manifest(
    store: Store, state: IcebergState, entry: Mapping[str, Any], known: Mapping[str, Manifest]
) -> Manifest:
    path = str(entry["manifest_path"])
    if path in known:
        return known[path]
    number, first_row_id = int(entry["sequence_number"]), entry.get("first_row_id")
    data = store.read(_own_path(store, state, path))
    return Manifest(
        path,
        int(entry["manifest_length"]),
        int(entry["content"]),
        number,
        int(entry["added_snapshot_id"]),
        decode_entries(data, number, first_row_id, path),
        first_row_id,
    )


def _own_path(store: Store, state: IcebergState, uri: str) -> str:
    """The path of a metadata file in the store.

    The table may have been moved since the path was written.
    """
    name = uri.rpartition("/")[2]
    if uri != f"{state.location}/{METADATA_DIR}/{name}":
        raise DataError(
            f"{store.uri_of(METADATA_DIR)}: {uri} is outside this folder, so Keytide did not "
            "write it; delete the folder, and the next publication recreates it"
        )
    return f"{METADATA_DIR}/{name}"


def drop_old(store: Store, before_ms: int) -> None:
    """Delete what no reader needs that began after a time: versions, and what they dropped."""
    made = {
        version: info.modified_ms
        for info in store.list(METADATA_DIR)
        if (version := parse_metadata_name(info.path.rpartition("/")[2])) is not None
    }
    old = sorted(version for version, modified_ms in made.items() if modified_ms < before_ms)
    if not old:
        return
    # The last of them was the latest version at that time.
    texts = store.read_present([metadata_path(version) for version in old])
    gone: list[str] = []
    for version, data in zip(old, texts, strict=True):
        if data is not None:
            _, document = decode_metadata(data, version, store.uri_of(metadata_path(version)))
            gone += [f"{METADATA_DIR}/{name}" for name in dropped_names(document)]
    # Versions last, because they say what to delete.
    store.discard(gone)
    store.discard(metadata_path(version) for version in old[:-1])


# -- files of versions -----------------------------------------------------------------------------


def files_of(state: IcebergState) -> frozenset[str]:
    """The names of the files in `METADATA_DIR` that a version references."""
    manifests = [manifest.path for manifest in state.manifests]
    return frozenset(map(_name_of, [state.manifest_list, *manifests, *state.deletes]))


def files_of_all(store: Store) -> frozenset[str]:
    """The names of the files that any existing version references.

    A missing file references nothing: old files are deleted before their versions. Raises
    `DataError` for a damaged one.
    """
    names = store.list_names(METADATA_DIR)
    versions = [name for name in names if parse_metadata_name(name) is not None]
    lists = {
        snapshot["manifest-list"]
        for name, data in _read_named(store, versions)
        for snapshot in decode_metadata(data, 0, store.uri_of(name))[1]["snapshots"]
    }
    found = {*map(_name_of, lists)}
    manifests = [
        described
        for name, data in _read_named(store, sorted(found))
        for described in decode_list(data, store.uri_of(name))
    ]
    found |= {_name_of(described["manifest_path"]) for described in manifests}
    deletes = {_name_of(each["manifest_path"]) for each in manifests if each["content"] == DELETES}
    for name, data in _read_named(store, sorted(deletes)):
        entries = decode_entries(data, 0, None, store.uri_of(name))
        found |= {_name_of(entry["data_file"]["file_path"]) for entry in entries}
    return frozenset(found)


def _read_named(store: Store, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Those files of the folder that exist, with their paths."""
    paths = [f"{METADATA_DIR}/{name}" for name in names]
    for path, data in zip(paths, store.read_present(paths), strict=True):
        if data is not None:
            yield path, data


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


# -- publications ----------------------------------------------------------------------------------


# With more manifests, they are merged: readers open each of them.
_MANIFESTS_MAX = 20
_TIDY_INTERVAL = 20


@dataclass(frozen=True)
class IcebergForm:
    """See `Form`. Versions are created in `format_version`, and all are read.

    The options of the schema `options_id` say so.
    """

    format_version: int = 2
    options_id: int = 0

    @property
    def name(self) -> str:
        """See `Form`."""
        return ICEBERG

    def why_not(self, content: Content) -> str | None:
        """See `Form`."""
        for number, older in content.older_schemas.items():
            reason = _why_not_by_id(older, content.view.schema)
            if reason is not None:
                return f"files of schema {number} are from before {reason}"
        return None

    def newest(self, store: Store, known: IcebergState | None) -> IcebergState | None:
        """See `Form`."""
        found = None if known is None else read_on(store, known)
        return newest_state(store) if found is None else found

    def is_outdated(self, before: IcebergState) -> bool:
        """See `Form`."""
        return before.options_id > self.options_id

    def draft(
        self, before: IcebergState | None, content: Content, now_ms: int
    ) -> IcebergDraft | None:
        """See `Form`."""
        location = content.view.store.uri.rstrip("/")
        said = self.format_version, self.options_id
        return _Difference(before, content, now_ms, *said, location, str(uuid4())).draft()

    def is_there(self, store: Store, version: IcebergState) -> bool:
        """See `Form`."""
        return store.exists(metadata_path(version.version))

    def take_back(self, store: Store, version: IcebergState) -> None:
        """See `Form`."""
        store.delete([metadata_path(version.version)])

    def announce(self, store: Store, version: IcebergState) -> None:
        """See `Form`."""
        # Write the hint for readers: this version, or a newer one that was created in the meantime.
        store.hint(VERSION_HINT, str(version.version).encode())
        if store.exists(metadata_path(version.version + 1)):
            newest = newest_state(store)
            if newest is not None:
                store.hint(VERSION_HINT, str(newest.version).encode())

    def tidy(self, store: Store, version: IcebergState, content: Content, now_ms: int) -> None:
        """See `Form`."""
        if version.version % _TIDY_INTERVAL == 0 and is_time_to_drop(store, self.name):
            drop_old(store, kept_since_ms(content.view.options, now_ms))


@dataclass(frozen=True)
class IcebergDraft:
    """See `Draft`.

    `files` are those that this version is the first to reference, by their paths.
    """

    files: Mapping[str, bytes]
    document: bytes
    next_state: IcebergState

    def create(self, store: Store) -> IcebergState | None:
        """See `Draft`."""
        store.put_all(self.files)
        if created(store, metadata_path(self.next_state.version), self.document):
            return self.next_state
        store.discard(self.files)
        return None


@dataclass(frozen=True)
class _Difference:
    """The difference between one version and the next."""

    before: IcebergState | None
    content: Content
    now_ms: int
    format_version: int
    options_id: int
    location: str
    uuid: str

    @property
    def version(self) -> int:
        """The number of the next version, and of its snapshot."""
        return 1 if self.before is None else self.before.version + 1

    @property
    def basis(self) -> IcebergState | None:
        """The previous version, if the next one belongs to the same Iceberg table.

        An Iceberg table never goes back to an older format version. Instead a new table begins, and
        its readers use nothing from before.
        """
        before = self.before
        return before if before and before.format_version <= self.format_version else None

    def draft(self) -> IcebergDraft | None:
        """The next version. None if there is no difference."""
        # The data files that the previous version references here, by name, with their paths.
        basis = self.basis
        known = basis.by_name if basis is not None and basis.location == self.location else {}
        new = [name for name in self.content.files if name not in known]
        dead = DeadRows(self.content, self.location, self.format_version)
        schema = schema_json(self.content.view.schema.fields, self.content.view.schema.id)
        if not new and self._is_shown(known, dead, schema):
            return None
        files: dict[str, bytes] = {}
        data = {uri for name, uri in known.items() if name in self.content.files}
        named = [
            *self._manifests(DATA, data, self._data_entries(new), schema, files),
            *self._manifests(DELETES, *self._deletes(dead, files), schema, files),
        ]
        manifests, row_ids = self._with_row_ids(named)
        name = f"snap-{self.version}-{self.uuid}.avro"
        files[f"{METADATA_DIR}/{name}"] = encode_list(manifests, self.version, self.format_version)
        after = IcebergState(
            self.version,
            self.format_version,
            str(uuid4()) if self.basis is None else self.basis.table_id,
            schema,
            self.location,
            self._uri(f"{METADATA_DIR}/{name}"),
            row_ids,
            manifests,
            self.content.snapshot.id,
            self.content.snapshot.commit_number,
            self.options_id,
        )
        dropped = set() if self.before is None else files_of(self.before) - files_of(after)
        document = metadata_document(after, self.now_ms, sorted(dropped))
        return IcebergDraft(files, document, after)

    def _uri(self, path: str) -> str:
        return f"{self.location}/{path}"

    def _is_shown(
        self, known: Mapping[str, str], dead: DeadRows, schema: Mapping[str, Any]
    ) -> bool:
        """Whether the previous version shows all of this, if no file is new."""
        before = self.before
        return (
            before is not None
            and before.format_version == self.format_version
            and shows(before, self.content.snapshot)
            and before.location == self.location
            and before.schema == schema
            and len(known) == len(self.content.files)
            and {digest_in(path) for path in before.deletes} == dead.by_digest.keys()
        )

    def _deletes(self, dead: DeadRows, files: dict[str, bytes]) -> tuple[set[str], list[Entry]]:
        """The delete files that must exist, and the entries of new ones."""
        known = {} if self.basis is None else {digest_in(p): p for p in self.basis.deletes}
        wanted = {known[digest] for digest in dead.by_digest if digest in known}
        entries: list[Entry] = []
        for path, made in dead.files(dead.by_digest.keys() - known.keys(), self.uuid).items():
            files[path] = made.data
            entries += map(self._added, made.entries)
            wanted.add(self._uri(path))
        return wanted, entries

    # -- data files

    def _data_entries(self, new: Sequence[str]) -> list[Entry]:
        fields = [f for f in self.content.view.schema.fields if has_bounds(f.type)]
        entries = [self.content.files[name] for name in new]
        bounds: list[dict[str, Any]] = [{}] * len(entries)
        if entries and fields:
            bounds = value_bounds(entries, fields, self.content.view.schemas).to_dicts()
        found = []
        for entry, row in zip(entries, bounds, strict=True):
            statistics: dict[str, list[Entry]] = {"nulls": [], "min": [], "max": []}
            for f in fields:
                for part, values in statistics.items():
                    value = row.get(f"{f.name}.{part}")
                    if value is not None:
                        shown = value if part == "nulls" else bound(value, f.type)
                        values.append({"key": f.id, "value": shown})
            data_file = {
                "content": DATA,
                "file_path": self._uri(self.content.path(entry.file.file_name)),
                "file_format": "PARQUET",
                "partition": {},
                "record_count": entry.file.row_count,
                "file_size_in_bytes": entry.file.file_size,
                "null_value_counts": statistics["nulls"],
                "lower_bounds": statistics["min"],
                "upper_bounds": statistics["max"],
            }
            found.append(self._added(data_file))
        return found

    def _added(self, data_file: Entry) -> Entry:
        return {
            "status": ADDED,
            "snapshot_id": self.version,
            "sequence_number": self.version,
            "file_sequence_number": self.version,
            "data_file": data_file,
        }

    # -- manifests

    def _manifests(
        self, content: int, wanted: Iterable[str], new: Sequence[Entry],
        schema: Mapping[str, Any], files: dict[str, bytes],
    ) -> list[Manifest]:  # fmt: skip
        """The manifests with one kind of content: the unchanged ones, and one with the rest."""
        known = () if self.basis is None else self.basis.manifests
        before = [each for each in known if each.content == content]
        named = frozenset(wanted)
        whole = [each for each in before if each.paths <= named]
        if len(whole) > _MANIFESTS_MAX:
            whole = []
        left = [
            {**entry, "status": EXISTING}
            for manifest in before
            if manifest not in whole
            for entry in manifest.entries
            if entry["data_file"]["file_path"] in named
        ]
        entries = (*left, *new)
        if not entries:
            return whole
        path = f"{METADATA_DIR}/{self.uuid}-m{content}.avro"
        files[path] = encode_entries(entries, content, schema, self.format_version)
        uri, size = self._uri(path), len(files[path])
        return [*whole, Manifest(uri, size, content, self.version, self.version, entries)]

    def _with_row_ids(self, manifests: Iterable[Manifest]) -> tuple[tuple[Manifest, ...], range]:
        """The manifests, with row ids if the format has them, and the range of newly assigned
        ids.
        """
        first = free = 0 if self.basis is None else self.basis.row_ids.stop
        if self.format_version < FIRST_WITH_ROW_IDS:
            return tuple(manifests), range(first, free)
        found = []
        for each in manifests:
            manifest, free = with_row_ids(each, free)
            found.append(manifest)
        return tuple(found), range(first, free)


def _why_not_by_id(older: TableSchema, newer: TableSchema) -> str | None:
    """Why readers that match columns by id would read files of an older schema incorrectly."""
    today = {field.id: field for field in newer.fields}
    for old in older.fields:
        new = today.get(old.id)
        if new is None:
            # Readers check the types of all columns in a file.
            why = why_no_column(old)
            if why is not None:
                return f"column {old.name!r} was dropped, and {why}"
        elif not is_promoted(old.type, new.type):
            return f"column {new.name!r}, which was {old.type.sql()}, became {new.type.sql()}"
    return None
