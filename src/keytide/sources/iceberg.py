"""Iceberg tables as sources, through the library `pyiceberg`.

The library reads metadata and manifests, and plans which files to read. Keytide reads the files
itself, one by one, in order and in batches. Key conditions are given to the library's planning, and
are true for every file that may have matching rows.

The commit of a part is its data sequence number, unless rows were moved between files. Files of a
snapshot that only appended have the rows of its commit. Other snapshots may have copied rows of
older files, so their data sequence number does not say when these rows arrived. A snapshot records
what happened to older files until it expires. Files of format version 1 have no such numbers, and
no order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property, library, side_by_side
from keytide.errors import DataError, InvalidError, NotFoundError, UnsupportedError
from keytide.format.cache import METADATA
from keytide.predicate.predicate import And, Comparison, In, IsNull, Not, Or, Predicate, columns_of
from keytide.sources.delta_history import Origin, hull, places
from keytide.sources.delta_history import Place as FilePlace
from keytide.sources.iceberg_catalog import (
    CATALOG_OPTIONS,
    IcebergPlace,
    IcebergStorage,
    iceberg_place,
)
from keytide.sources.parquet import (
    FIELD_ID,
    ForeignFile,
    ForeignPart,
    MisfitError,
    StoredColumn,
    StoredColumns,
    column_type,
    reading,
)
from keytide.sources.source import Place
from keytide.store import open_store
from keytide.store.interface import Store

# -- data files and delete files -------------------------------------------------------------------


@dataclass(frozen=True)
class ByIds:
    """Finds fields by their ids or, in files without ids, by the mapped names."""

    names: Mapping[int, Sequence[str]]

    def __call__(self, fields: Sequence[pa.Field], wanted: pa.Field) -> int | None:
        """See `Finder`."""
        id_ = int(wanted.metadata[FIELD_ID])
        ids = [(field.metadata or {}).get(FIELD_ID) for field in fields]
        if any(found is not None for found in ids):
            return next((i for i, found in enumerate(ids) if found and int(found) == id_), None)
        if not self.names:
            raise MisfitError("its fields have no ids, and the table has no name mapping")
        names = self.names.get(id_, ())
        return next((i for i, field in enumerate(fields) if field.name in names), None)


@dataclass(frozen=True)
class IcebergPart(ForeignPart):
    """A data file of an Iceberg table. See `SourcePart`.

    `plain` are the columns that files have with their current names.
    """

    storage: IcebergStorage = field(repr=False)
    path: str
    rows: int | None
    stored_bytes: int | None
    commit: int
    is_in_order: bool
    stored: tuple[StoredColumn, ...] = field(repr=False)
    find: ByIds = field(repr=False)
    constants: Mapping[str, pa.Scalar] = field(repr=False)
    deletes: tuple[tuple[str, str], ...] = field(repr=False)
    plain: frozenset[str] = field(repr=False)

    def __str__(self) -> str:
        return self.path

    @property
    def has_dead_rows(self) -> bool:
        """See `ParquetPart`."""
        return bool(self.deletes)

    def dead_rows(self) -> npt.NDArray[np.int64]:
        """See `ParquetPart`. Reads the delete files."""
        found = [np.empty(0, np.int64)]
        for path, kind in self.deletes:
            with reading(path), self._opened(path) as file:
                if kind != "puffin":
                    for batch in pq.ParquetFile(file).iter_batches(columns=["file_path", "pos"]):
                        mine = pc.equal(batch.column("file_path").cast(pa.string()), self.path)
                        found.append(
                            batch.column("pos").filter(mine).to_numpy(zero_copy_only=False)
                        )
                    continue
                data = file.read()
                puffin = library("pyiceberg.table.puffin", "iceberg", path).PuffinFile(data)
                for blob in puffin.footer.blobs:
                    if blob.properties.get("referenced-data-file") != self.path:
                        continue
                    # A deletion vector: a length, a magic number, the bitmap, a checksum.
                    payload = data[blob.offset : blob.offset + blob.length]
                    if zlib.crc32(payload[4:-4]) != int.from_bytes(payload[-4:], "big"):
                        raise DataError(
                            f"{path}: the checksum of the deletion vector of {self.path} is wrong"
                        )
                    bitmap = BitMap64.deserialize(payload[8:-4])
                    found.append(np.fromiter(bitmap, np.int64, len(bitmap)))
        return np.unique(np.concatenate(found))

    def file(self) -> ForeignFile:
        """See `ForeignPart`."""
        opened = partial(self._opened, self.path)
        return ForeignFile(opened, self.path, self.find, self.constants, self.dead_rows())

    def plain_file(self, columns: Sequence[str]) -> tuple[Store, str] | None:
        """See `ParquetPart`."""
        if not {*columns} <= self.plain or self.constants.keys() & {*columns}:
            return None
        place = urlsplit(self.path)
        path = place.path if place.scheme in ("", "file") else self.path
        folder, _, name = path.rpartition("/")
        try:
            return open_store(folder), name
        except InvalidError:
            return None  # only Iceberg knows this store

    def _opened(self, path: str) -> Any:
        return self.storage.io.new_input(path).open()


def mapped_names(fields: Sequence[Any]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The names for ids in a name mapping, at any depth."""
    for mapped in fields:
        if mapped.field_id is not None:
            yield mapped.field_id, tuple(mapped.names)
        yield from mapped_names(mapped.fields)


# -- key conditions for planning -------------------------------------------------------------------


_NAMES = {
    "=": "EqualTo",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
}
_VALUES_MAX = 200
"""Longer lists are omitted, because `pyiceberg` does not compare bounds for them."""


def planning_condition(predicate: Predicate, schema: pa.Schema, expressions: ModuleType) -> Any:
    """A `pyiceberg` condition that is never stricter. Terms that it cannot express are omitted."""
    if isinstance(predicate, And | Or):
        terms = [planning_condition(term, schema, expressions) for term in predicate.terms]
        join = expressions.And if isinstance(predicate, And) else expressions.Or
        return join(*terms)
    everything = expressions.AlwaysTrue()
    term = predicate.term if isinstance(predicate, Not) else predicate
    if not isinstance(term, IsNull | Comparison | In) or "." in term.column:
        return everything  # a dot would mean a nested field there
    if isinstance(term, IsNull):
        condition = expressions.NotNull if isinstance(predicate, Not) else expressions.IsNull
        return condition(term.column)
    if not isinstance(predicate, Comparison | In):
        return everything

    # Whether values of a type have the same order in Iceberg. Bounds do not include NaN.
    type_ = schema.field(predicate.column).type
    checks = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)
    is_ordered_alike = any(check(type_) for check in checks) or (
        pa.types.is_timestamp(type_) and type_.unit == "us"
    )
    if not is_ordered_alike:
        return everything
    if isinstance(predicate, In):
        is_long = len(predicate.values) > _VALUES_MAX
        return everything if is_long else expressions.In(predicate.column, set(predicate.values))
    if predicate.operator == "!=":
        return everything
    return getattr(expressions, _NAMES[predicate.operator])(predicate.column, predicate.value)


# -- the commits of files --------------------------------------------------------------------------


@dataclass(frozen=True)
class SnapshotFacts:
    """A snapshot among the ancestors of the one that is read. Sequence numbers start at 1."""

    id: int
    sequence_number: int
    operation: str


def origins_of(
    files: Sequence[tuple[int | None, int]],
    snapshots: Mapping[int, SnapshotFacts],
    removed_by: Callable[[int], Sequence[int]],
) -> list[Origin]:
    """The origin of files, given by the snapshot and the sequence number that added each.

    `removed_by` returns the sequence numbers of the files that a snapshot removed. It is called for
    snapshots that did not only append. A file of an expired snapshot can be from any commit up to
    its own.
    """
    by_number = {facts.sequence_number: facts for facts in snapshots.values()}
    # What relevant snapshots that did not only append have removed.
    waiting = {number for id_, number in files if id_ in snapshots}
    removed: dict[int, Sequence[int]] = {}
    while waiting:
        number = waiting.pop()
        facts = by_number.get(number)
        if facts is None or facts.operation == "append" or number in removed:
            continue
        removed[number] = removed_by(facts.id)
        waiting |= {*removed[number]}

    known: dict[int, Origin] = {}
    for number in sorted(removed):  # what a snapshot removed was added before it
        operation, gone = by_number[number].operation, removed[number]
        if not gone:
            # Deletes by position add only new files. Rewriting removes files.
            is_new = operation == "overwrite"
            known[number] = Origin(number if is_new else 0, number, is_in_order=is_new)
            continue
        copied = hull([_looked_up(each, by_number.get(each), known) for each in gone])
        known[number] = copied if operation == "replace" else Origin(copied.first, number)
    return [_looked_up(number, snapshots.get(id_ or 0), known) for id_, number in files]


def _looked_up(number: int, facts: SnapshotFacts | None, known: Mapping[int, Origin]) -> Origin:
    if facts is None or number < 1:
        return Origin(0, number)
    return known.get(number, Origin(number, number, is_in_order=True))


# -- the source ------------------------------------------------------------------------------------


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
            number = table.metadata.format_version
            if number > _FORMAT_VERSION_MAX:
                raise UnsupportedError(
                    f"{self.place.shown} has format version {number}; supported are versions up "
                    f"to {_FORMAT_VERSION_MAX}"
                )
            summary = snapshot.summary if snapshot is not None else None
            facts = summary.additional_properties if summary else {}
            if facts.get("total-equality-deletes", "0") != "0":
                raise UnsupportedError(_EQUALITY_DELETES.format(shown=self.place.shown))
            schema = table.schema()
            if snapshot is not None and snapshot.schema_id is not None and version is not None:
                schema = table.schemas()[snapshot.schema_id]
            columns = _columns(schema, self.place.shown)
            id_ = None if snapshot is None else snapshot.snapshot_id
            pinned = PinnedIceberg(self.place, id_, schema.schema_id, columns)
            vars(pinned)["_table"] = table  # a pickled copy opens it again
            return pinned


@dataclass(frozen=True)
class PinnedIceberg(StoredColumns):
    """One snapshot of an Iceberg table. See `PinnedSource`."""

    place: IcebergPlace
    snapshot_id: int | None
    schema_id: int
    columns: tuple[StoredColumn, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return PinnedIceberg, (self.place, self.snapshot_id, self.schema_id, self.columns)

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
    def cut_by(self) -> Sequence[str]:
        """See `PinnedSource`. The source columns of all partition specifications."""
        names = {field.field_id: field.name for field in self._described.fields}
        sources = {f.source_id for spec in self._table.specs().values() for f in spec.fields}
        return sorted(
            names.get(source, "") for source in sources
        )  # or a nested field, or a dropped one

    def parts(self, key_condition: Predicate | None = None) -> list[IcebergPart]:
        """See `PinnedSource`."""
        if self.snapshot_id is None:
            return []
        with self.place.errors():
            entries = self._entries
            files = [
                (entry.snapshot_id, entry.file_sequence_number or entry.sequence_number or 0)
                for entry in entries
            ]
            ordered = places(origins_of(files, self._ancestors(), self._removed_by))

            # The paths of files that may have wanted rows, with their delete files.
            expressions = library("pyiceberg.expressions", "iceberg", self.place.shown)
            condition = expressions.AlwaysTrue()
            # Plans use current names, which may not be the same as at this snapshot.
            now = {f.name: f.field_id for f in self._table.schema().fields}
            then = {f.name: f.field_id for f in self._described.fields}
            names = columns_of(key_condition)
            if key_condition is not None and all(now.get(name) == then[name] for name in names):
                condition = planning_condition(key_condition, self.schema, expressions)
            scan = self._table.scan(row_filter=condition, snapshot_id=self.snapshot_id)
            deletes = {task.file.file_path: tuple(task.delete_files) for task in scan.plan_files()}
            storage = IcebergStorage.of(self._table, self.place.catalog_name)
            found = [
                self._part(entry, place, deletes[entry.data_file.file_path], storage)
                for entry, place in zip(entries, ordered, strict=True)
                if entry.data_file.file_path in deletes
            ]
        return sorted(found, key=lambda part: part.commit)

    @cached_property
    def _table(self) -> Any:
        with self.place.errors():
            return self.place.open()

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
        # Some data and delete files would be read incorrectly, or not at all.
        shown = self.place.shown
        for file in (entry.data_file for entry in entries):
            content, kind = int(file.content), str(file.file_format.value).lower()
            if content == _EQUALITY:
                raise UnsupportedError(_EQUALITY_DELETES.format(shown=shown))
            if kind not in ("parquet", "puffin") or (kind == "puffin" and content == _DATA):
                raise UnsupportedError(
                    f"{shown}: {file.file_path} has the format {kind}; only Parquet files are "
                    "supported"
                )
            if file.key_metadata is not None:
                raise UnsupportedError(
                    f"{shown}: {file.file_path} is encrypted, which cannot be read"
                )
        data = [entry for entry in entries if int(entry.data_file.content) == _DATA]
        return sorted(data, key=lambda entry: entry.sequence_number or 0)

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
        return METADATA.load(key, partial(self._read_removed, snapshot_id))

    def _read_removed(self, snapshot_id: int) -> tuple[list[int], int]:
        io = self._table.io
        snapshot = self._table.metadata.snapshot_by_id(snapshot_id)
        own = [m for m in snapshot.manifests(io) if m.added_snapshot_id == snapshot_id]
        read = side_by_side(
            [partial(m.fetch_manifest_entry, io, discard_deleted=False) for m in own],
            _PARALLEL_REQUESTS,
        )
        numbers = [
            entry.file_sequence_number or entry.sequence_number or 0
            for part in read
            for entry in part
            if entry.status.name == "DELETED" and int(entry.data_file.content) == _DATA
        ]
        return numbers, 64 + 32 * len(numbers)

    def _part(
        self, entry: Any, place: FilePlace, deletes: Sequence[Any], storage: IcebergStorage
    ) -> IcebergPart:
        file = entry.data_file
        mapping = self._table.name_mapping()
        # Values of columns that a file lacks: from its partition, or defaults of added columns.
        transforms = library("pyiceberg.transforms", "iceberg", self.place.shown)
        spec = self._table.specs()[file.spec_id]
        identity = {
            f.source_id: file.partition[i]
            for i, f in enumerate(spec.fields)
            if isinstance(f.transform, transforms.IdentityTransform)
        }
        constants = {}
        for member, column in zip(self._described.fields, self.columns, strict=True):
            value = identity.get(member.field_id, getattr(member, "initial_default", None))
            if value is not None:
                constants[column.name] = pa.scalar(value, column.type)
        return IcebergPart(
            storage,
            file.file_path,
            file.record_count,
            file.file_size_in_bytes,
            place.commit,
            place.is_in_order,
            self.columns,
            ByIds({} if mapping is None else dict(mapped_names(mapping.root))),
            constants,
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


_DATA, _EQUALITY = 0, 2
"""The content of files, by the format's numbers. It is a plain number in files of version 1."""


_EQUALITY_DELETES = (
    "{shown} has equality deletes, which this release does not support; rewrite its data files "
    "with its own engine (rewrite_data_files), or write position deletes"
)


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
