"""Iceberg tables as sources, through the library `pyiceberg`.

The library reads metadata and manifests, and plans which files to read. Keytide reads the files
itself, one by one, in order and in batches. The commit of a part is its data sequence number,
unless rows were moved between files, see `iceberg_origins`. Files of format version 1 have no such
numbers, and no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from keytide.base.extras import library
from keytide.base.lazily import cached_property
from keytide.base.threads import side_by_side
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.format.cache import METADATA
from keytide.predicate.predicate import Predicate, columns_of
from keytide.sources.commit_order import places
from keytide.sources.iceberg_files import ByIds, IcebergPart, mapped_names
from keytide.sources.iceberg_origins import SnapshotFacts, origins_of
from keytide.sources.iceberg_place import CATALOG_OPTIONS, IcebergPlace, iceberg_place
from keytide.sources.iceberg_storage import IcebergStorage
from keytide.sources.iceberg_terms import planned
from keytide.sources.parquet_rows import (
    StoredColumn,
    column_type,
)
from keytide.sources.source import Place

__all__ = ["OPTIONS", "IcebergSource", "open_source"]

_PARALLEL_REQUESTS = 32
_FORMAT_VERSION_MAX = 3


OPTIONS = CATALOG_OPTIONS
"""The options of a definition: those of a catalog."""


def open_source(place: Place) -> IcebergSource:
    """The Iceberg table at a location. Nothing is read yet.

    `location` is the folder of a table, a metadata file or, with `catalog.uri`, a name in a
    catalog: a SQLite catalog (`sqlite:///path`, type `sql`) or a REST catalog. Secrets for a
    catalog come from the environment, as `pyiceberg` reads it: PYICEBERG_CATALOG__DEFAULT__TOKEN
    for the catalog named `default`. Raises `InvalidError` for other options, and for secrets among
    them.
    """
    return IcebergSource(iceberg_place(place))


@dataclass(frozen=True)
class IcebergSource:
    """An Iceberg table. See `Source`."""

    place: IcebergPlace

    @property
    def location(self) -> str:
        """The folder, the metadata file or the name."""
        return self.place.name

    def pin(self, version: str | int | None = None) -> PinnedIceberg:
        """See `Source`. A version is a snapshot id, or the name of a tag or branch."""
        with self.place.errors():
            table = self.place.open()
            snapshot = _snapshot(table, version, self.place.shown)
            _refuse_features(table, snapshot, self.place.shown)
            schema = table.schema()
            if snapshot is not None and snapshot.schema_id is not None and version is not None:
                schema = table.schemas()[snapshot.schema_id]
            columns = _columns(schema, self.place.shown)
            number = None if snapshot is None else snapshot.snapshot_id
            pinned = PinnedIceberg(self.place, number, schema.schema_id, columns)
            vars(pinned)["_table"] = table  # a pickled copy opens it again
            return pinned


@dataclass(frozen=True)
class PinnedIceberg:
    """One snapshot of an Iceberg table. See `PinnedSource`."""

    place: IcebergPlace
    snapshot_id: int | None
    schema_id: int
    columns: tuple[StoredColumn, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return PinnedIceberg, (self.place, self.snapshot_id, self.schema_id, self.columns)

    @property
    def schema(self) -> pa.Schema:
        """See `PinnedSource`."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def version(self) -> str | None:
        """The snapshot id, None for a table that never had one."""
        return None if self.snapshot_id is None else str(self.snapshot_id)

    @property
    def tells_order(self) -> bool:
        """See `AppendableSource`. Version 1 of the format has no sequence numbers."""
        return int(self._table.metadata.format_version) > 1

    @property
    def properties(self) -> Mapping[str, str]:
        """See `AppendableSource`. The properties of the table."""
        return dict(self._table.properties)

    @property
    def required(self) -> frozenset[str]:
        """See `AppendableSource`."""
        return frozenset(c.name for c in self.columns if not c.stored.nullable)

    @property
    def cut_by(self) -> Sequence[str]:
        """See `PinnedSource`. The source columns of all partition specifications."""
        names = {field.field_id: field.name for field in self._described.fields}
        sources = {f.source_id for spec in self._table.specs().values() for f in spec.fields}
        return sorted(
            names.get(source, "") for source in sources
        )  # or a nested field, or a dropped one

    def parts(self, about_key: Predicate | None = None) -> list[IcebergPart]:
        """See `PinnedSource`."""
        if self.snapshot_id is None:
            return []
        with self.place.errors():
            entries = self._entries
            ordered = places(self._origins())
            deletes = self._planned(about_key)
            found = [
                self._part(
                    entry, place.commit, place.is_in_order, deletes[entry.data_file.file_path]
                )
                for entry, place in zip(entries, ordered, strict=True)
                if entry.data_file.file_path in deletes
            ]
        return sorted(found, key=lambda part: part.commit)

    @cached_property
    def _table(self) -> Any:
        with self.place.errors():
            return self.place.open()

    @cached_property
    def _storage(self) -> IcebergStorage:
        return IcebergStorage.of(self._table, self.place.catalog_name)

    @property
    def _snapshot(self) -> Any:
        return _snapshot(self._table, self.version, self.place.shown)

    @property
    def _described(self) -> Any:
        return self._table.schemas()[self.schema_id]

    @cached_property
    def _entries(self) -> list[Any]:
        """The live data files in manifest order, oldest first."""
        manifests = self._snapshot.manifests(self._table.io)
        read = side_by_side(
            [partial(m.fetch_manifest_entry, self._table.io) for m in manifests], _PARALLEL_REQUESTS
        )
        entries = [entry for part in read for entry in part]
        for entry in entries:
            _refuse_file(entry.data_file, self.place.shown)
        data = [entry for entry in entries if _content(entry.data_file) == _DATA]
        return sorted(data, key=lambda entry: entry.sequence_number or 0)

    def _origins(self) -> list[Any]:
        files = [
            (entry.snapshot_id, entry.file_sequence_number or entry.sequence_number or 0)
            for entry in self._entries
        ]
        return origins_of(files, self._ancestors(), self._removed_by)

    def _ancestors(self) -> dict[int, SnapshotFacts]:
        found: dict[int, SnapshotFacts] = {}
        snapshot = self._snapshot
        while snapshot is not None and snapshot.snapshot_id not in found:
            operation = snapshot.summary.operation.value if snapshot.summary else "unknown"
            number = snapshot.sequence_number or 0
            found[snapshot.snapshot_id] = SnapshotFacts(snapshot.snapshot_id, number, operation)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.metadata.snapshot_by_id(parent)
        return found

    def _removed_by(self, snapshot_id: int) -> list[int]:
        """See `origins_of`. Each snapshot is read once per process, because it never changes."""
        key = ("removed by", str(self._table.metadata.table_uuid), snapshot_id)
        return METADATA.load(key, lambda: _with_size(self._read_removed(snapshot_id)))

    def _read_removed(self, snapshot_id: int) -> list[int]:
        io = self._table.io
        snapshot = self._table.metadata.snapshot_by_id(snapshot_id)
        own = [m for m in snapshot.manifests(io) if m.added_snapshot_id == snapshot_id]
        read = side_by_side(
            [partial(m.fetch_manifest_entry, io, discard_deleted=False) for m in own],
            _PARALLEL_REQUESTS,
        )
        return [
            entry.file_sequence_number or entry.sequence_number or 0
            for part in read
            for entry in part
            if entry.status.name == "DELETED" and _content(entry.data_file) == _DATA
        ]

    def _planned(self, about_key: Predicate | None) -> dict[str, tuple[Any, ...]]:
        """The paths of files that may have wanted rows, with their delete files."""
        expressions = library("pyiceberg.expressions", "iceberg", self.place.shown)
        condition = expressions.AlwaysTrue()
        if about_key is not None and self._keeps_names(about_key):
            condition = planned(about_key, self.schema, expressions)
        scan = self._table.scan(row_filter=condition, snapshot_id=self.snapshot_id)
        return {task.file.file_path: tuple(task.delete_files) for task in scan.plan_files()}

    def _keeps_names(self, about_key: Predicate) -> bool:
        """Whether names are the same as at this snapshot, because plans use current names."""
        now = {f.name: f.field_id for f in self._table.schema().fields}
        then = {f.name: f.field_id for f in self._described.fields}
        return all(now.get(name) == then[name] for name in columns_of(about_key))

    def _part(
        self, entry: Any, commit: int, is_in_order: bool, deletes: Sequence[Any]
    ) -> IcebergPart:
        file = entry.data_file
        mapping = self._table.name_mapping()
        return IcebergPart(
            self._storage,
            file.file_path,
            file.record_count,
            file.file_size_in_bytes,
            commit,
            is_in_order,
            self.columns,
            ByIds({} if mapping is None else dict(mapped_names(mapping.root))),
            self._constants(file),
            tuple((f.file_path, str(f.file_format.value).lower()) for f in deletes),
            self._plain,
        )

    @cached_property
    def _plain(self) -> frozenset[str]:
        """The columns that files contain with their current names and types."""
        if self._table.name_mapping() is not None:
            return frozenset()
        every = [f for schema in self._table.schemas().values() for f in schema.fields]
        return frozenset(
            member.name
            for member in self._described.fields
            if all(
                (f.name.lower(), f.field_type) == (member.name.lower(), member.field_type)
                and f.field_id == member.field_id
                for f in every
                if f.field_id == member.field_id or f.name.lower() == member.name.lower()
            )
        )

    def _constants(self, file: Any) -> dict[str, pa.Scalar]:
        """Values of columns that a file lacks: from its partition, or defaults of added columns."""
        transforms = library("pyiceberg.transforms", "iceberg", self.place.shown)
        spec = self._table.specs()[file.spec_id]
        identity = {
            f.source_id: file.partition[i]
            for i, f in enumerate(spec.fields)
            if isinstance(f.transform, transforms.IdentityTransform)
        }
        found = {}
        for member, column in zip(self._described.fields, self.columns, strict=True):
            value = identity.get(member.field_id, getattr(member, "initial_default", None))
            if value is not None:
                found[column.name] = pa.scalar(value, column.type)
        return found


def _with_size(numbers: list[int]) -> tuple[list[int], int]:
    return numbers, 64 + 32 * len(numbers)


def _snapshot(table: Any, version: str | int | None, shown: str) -> Any:
    if version is None:
        return table.current_snapshot()
    if isinstance(version, bool) or version == "":
        raise InvalidError(
            f"{shown}: a version is a snapshot id, a tag or a branch; found {version!r}"
        )
    is_id = str(version).isdecimal()
    metadata = table.metadata
    found = metadata.snapshot_by_id(int(version)) if is_id else metadata.snapshot_by_name(version)
    if found is None:
        raise NotFoundError(
            f"{shown} has no snapshot, tag or branch {version}; it can have expired"
        )
    return found


def _refuse_features(table: Any, snapshot: Any, shown: str) -> None:
    version = table.metadata.format_version
    if version > _FORMAT_VERSION_MAX:
        raise UnsupportedError(
            f"{shown} has format version {version}; supported are versions up to "
            f"{_FORMAT_VERSION_MAX}"
        )
    summary = snapshot.summary if snapshot is not None else None
    deletes = summary.additional_properties.get("total-equality-deletes", "0") if summary else "0"
    if deletes != "0":
        raise UnsupportedError(_EQUALITY_DELETES.format(shown=shown))


_DATA, _EQUALITY = 0, 2
"""The content of files, by the format's numbers."""


def _content(file: Any) -> int:
    return int(file.content)  # a plain number in files of version 1


_EQUALITY_DELETES = (
    "{shown} has equality deletes, which this release does not support; rewrite its data files "
    "with its own engine (rewrite_data_files), or write position deletes"
)


def _refuse_file(file: Any, shown: str) -> None:
    """Refuse a data or delete file that would be read incorrectly, or not at all."""
    content, kind = _content(file), str(file.file_format.value).lower()
    if content == _EQUALITY:
        raise UnsupportedError(_EQUALITY_DELETES.format(shown=shown))
    if kind not in ("parquet", "puffin") or (kind == "puffin" and content == _DATA):
        raise UnsupportedError(
            f"{shown}: {file.file_path} has the format {kind}; only Parquet files are supported"
        )
    if file.key_metadata is not None:
        raise UnsupportedError(f"{shown}: {file.file_path} is encrypted, which cannot be read")


def _columns(schema: Any, shown: str) -> tuple[StoredColumn, ...]:
    arrow = library("pyiceberg.io.pyarrow", "iceberg", shown)
    columns = []
    for member in schema.fields:
        try:
            (stored,) = arrow.schema_to_pyarrow(type(schema)(member))
        except Exception as error:
            raise UnsupportedError(
                f"{shown}: column {member.name!r} has the type {member.field_type}, which "
                "Keytide does not support; remove the column from that table, or change its type"
            ) from error
        columns.append(
            StoredColumn(member.name, column_type(member.name, stored.type, shown), stored)
        )
    return tuple(columns)
