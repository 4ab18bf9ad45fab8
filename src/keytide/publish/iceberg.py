"""Publishes tables as Apache Iceberg, in the format version that an option selects.

`metadata/` references data files of the table, and its own files that mark dead rows, see
`DeadRows`. There are no partitions: bounds of columns prune equally well, because they are exact
for partition columns.

From version 3 of the format on, rows have ids. A data file keeps the ids that it got when it was
first referenced, from version to version. For rewritten rows, the format only says that they may
have other ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from keytide.definition.publication import ICEBERG
from keytide.format.iceberg.bounds import bound, has_bounds
from keytide.format.iceberg.columns import is_promoted, schema_json, why_no_column
from keytide.format.iceberg.manifest import (
    ADDED,
    DATA,
    DELETES,
    EXISTING,
    Entry,
    Manifest,
    encode_entries,
    encode_list,
    with_row_ids,
)
from keytide.format.iceberg.metadata import (
    FIRST_WITH_ROW_IDS,
    METADATA_DIR,
    IcebergState,
    metadata_document,
    metadata_path,
)
from keytide.format.schema import TableSchema
from keytide.publish.content import Content
from keytide.publish.form import shows
from keytide.publish.iceberg_deletes import DeadRows, digest_in
from keytide.publish.iceberg_metadata import (
    drop_old,
    files_of,
    newest_state,
    read_on,
    tell_newest,
)
from keytide.publish.retention import is_time_to_drop, kept_since_ms
from keytide.read.statistics import value_bounds
from keytide.store import Store, created

__all__ = ["IcebergForm"]

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
        return _Difference.of(before, content, now_ms, self).draft()

    def is_there(self, store: Store, version: IcebergState) -> bool:
        """See `Form`."""
        return store.exists(metadata_path(version.version))

    def take_back(self, store: Store, version: IcebergState) -> None:
        """See `Form`."""
        store.delete([metadata_path(version.version)])

    def announce(self, store: Store, version: IcebergState) -> None:
        """See `Form`."""
        tell_newest(store, version)

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
    after: IcebergState

    def create(self, store: Store) -> IcebergState | None:
        """See `Draft`."""
        store.put_all(self.files)
        if created(store, metadata_path(self.after.version), self.document):
            return self.after
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

    @classmethod
    def of(
        cls, before: IcebergState | None, content: Content, now_ms: int, form: IcebergForm
    ) -> _Difference:
        location = content.view.store.uri.rstrip("/")
        said = form.format_version, form.options_id
        return cls(before, content, now_ms, *said, location, str(uuid4()))

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
        known = self._known()
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
        document = metadata_document(after, self.now_ms, self._dropped(after))
        return IcebergDraft(files, document, after)

    def _uri(self, path: str) -> str:
        return f"{self.location}/{path}"

    def _known(self) -> Mapping[str, str]:
        """The data files that the previous version references here, by name, with their paths."""
        basis = self.basis
        return basis.by_name if basis is not None and basis.location == self.location else {}

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
            entries += map(self._added, made.told)
            wanted.add(self._uri(path))
        return wanted, entries

    # -- data files

    def _data_entries(self, new: Sequence[str]) -> list[Entry]:
        fields = [f for f in self.content.view.schema.fields if has_bounds(f.type)]
        entries = [self.content.files[name] for name in new]
        has_told = bool(entries and fields)
        bounds = (
            value_bounds(entries, fields, self.content.view.schemas).to_dicts()
            if has_told
            else [{}] * len(entries)
        )
        types = {f.name: (f.id, f.type) for f in fields}

        def by_id(row: Mapping[str, Any], part: str) -> list[Entry]:
            return [
                {"key": number, "value": bound(row[f"{name}.{part}"], type_)}
                for name, (number, type_) in types.items()
                if row.get(f"{name}.{part}") is not None
            ]

        return [
            self._added(
                {
                    "content": DATA,
                    "file_path": self._uri(self.content.path(entry.file.file_name)),
                    "file_format": "PARQUET",
                    "partition": {},
                    "record_count": entry.file.row_count,
                    "file_size_in_bytes": entry.file.file_size,
                    "null_value_counts": [
                        {"key": number, "value": row[f"{name}.nulls"]}
                        for name, (number, _) in types.items()
                        if row.get(f"{name}.nulls") is not None
                    ],
                    "lower_bounds": by_id(row, "min"),
                    "upper_bounds": by_id(row, "max"),
                }
            )
            for entry, row in zip(entries, bounds, strict=True)
        ]

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
        entries = [*left, *new]
        return [*whole, *([self._manifest(content, entries, schema, files)] if entries else [])]

    def _manifest(
        self, content: int, entries: Sequence[Entry], schema: Mapping[str, Any],
        files: dict[str, bytes],
    ) -> Manifest:  # fmt: skip
        path = f"{METADATA_DIR}/{self.uuid}-m{content}.avro"
        files[path] = encode_entries(entries, content, schema, self.format_version)
        size = len(files[path])
        return Manifest(self._uri(path), size, content, self.version, self.version, tuple(entries))

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

    def _dropped(self, after: IcebergState) -> list[str]:
        """The names of files that the previous version referenced, and this one does not."""
        if self.before is None:
            return []
        return sorted(files_of(self.before) - files_of(after))


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
