"""Delta Lake tables as sources, through the library `deltalake`.

The library opens a version and lists its files, their bounds, and the rows that deletion vectors
mark. Keytide reads the files itself, one by one and in order, because the library does not
guarantee an order. Columns have a current form, and a form in files. The commit of a part is the
version that added its rows, as far as the log still contains it. See `delta_history` for what it no
longer contains.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property, library
from keytide.errors import DataError, InvalidError, KeytideError, NotFoundError, UnsupportedError
from keytide.predicate.predicate import Predicate, columns_of
from keytide.sources.delta_history import FileHistory, history_of, places, read_commits
from keytide.sources.parquet import (
    FIELD_ID,
    Finder,
    ForeignFile,
    ForeignPart,
    StoredColumn,
    StoredColumns,
    bounds_table,
    by_id,
    by_name,
    column_type,
    may_match_files,
)
from keytide.sources.source import Place
from keytide.store import Store, store_of_file

# -- columns of the schema -------------------------------------------------------------------------


def delta_columns(schema: str, owner: str) -> list[StoredColumn]:
    """The columns of a schema in Delta's format.

    Raises `UnsupportedError`, naming the column, for a type that Keytide's tables do not have.
    """
    columns = []
    for each in json.loads(schema)["fields"]:
        name = str(each["name"])
        shown = _type(each["type"], name, owner, _shown)
        columns.append(
            StoredColumn(name, column_type(name, shown, owner), _stored(each, name, owner))
        )
    return columns


def _shown(member: Mapping[str, Any], name: str, owner: str) -> pa.Field:
    type_ = _type(member["type"], name, owner, _shown)
    return pa.field(str(member["name"]), type_, bool(member["nullable"]))


def _stored(member: Mapping[str, Any], name: str, owner: str) -> pa.Field:
    """A field as in files: with its physical name and id if columns are mapped."""
    metadata = member.get("metadata") or {}
    id_ = metadata.get("delta.columnMapping.id")
    return pa.field(
        str(metadata.get("delta.columnMapping.physicalName", member["name"])),
        _type(member["type"], name, owner, _stored),
        bool(member["nullable"]),
        metadata=None if id_ is None else {FIELD_ID: str(id_).encode()},
    )


def _type(type_: Any, name: str, owner: str, field_of: Any) -> pa.DataType:
    """An Arrow type whose fields are created by `field_of`."""
    kind = type_["type"] if isinstance(type_, dict) else type_
    if kind == "struct":
        return pa.struct([field_of(member, name, owner) for member in type_["fields"]])
    if kind == "array":
        element = _type(type_["elementType"], name, owner, field_of)
        return pa.list_(pa.field("element", element, bool(type_["containsNull"])))
    if kind == "map":
        key, value = (
            _type(type_[f"{part}Type"], name, owner, field_of) for part in ("key", "value")
        )
        return pa.map_(key, pa.field("value", value, bool(type_["valueContainsNull"])))
    decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", str(kind))
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if kind not in _TYPES:
        raise UnsupportedError(
            f"{owner}: column {name!r} has the type {kind}, which Keytide does not support; "
            "remove the column from that table, or change its type"
        )
    return _TYPES[kind]


_TYPES = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


# -- the source ------------------------------------------------------------------------------------


_READER_VERSION_MAX = 3
_WIDENING = {"typeWidening", "typeWidening-preview"}
_FEATURES = _WIDENING | {
    "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
    "variantType", "variantType-preview",
}  # fmt: skip
"""Reader features that are supported. VARIANT columns are refused by their type."""


def open_source(place: Place) -> DeltaSource:
    """The Delta table in a folder. Nothing is read yet. It has no options.

    Raises as `open_store`.
    """
    return DeltaSource(store_of_file(f"{place.location.rstrip('/')}/x", place.near)[0].uncached())


@dataclass(frozen=True)
class DeltaSource:
    """A Delta table at a location. See `Source`."""

    store: Store

    @property
    def location(self) -> str:
        """The folder."""
        return self.store.uri

    def pin(self, version: str | int | None = None) -> PinnedDelta:
        """See `Source`. A version is a version number of Delta's log."""
        with delta_errors(self.store):
            table = self._opened(version)
            protocol = table.protocol()
            unknown = sorted(set(protocol.reader_features or ()) - _FEATURES)
            if protocol.min_reader_version > _READER_VERSION_MAX or unknown:
                raise UnsupportedError(
                    f"Delta table {self.location} requires reader version "
                    f"{protocol.min_reader_version} and {', '.join(unknown) or 'no features'}, "
                    "which this release does not support; supported are version "
                    f"{_READER_VERSION_MAX} and {', '.join(sorted(_FEATURES))}"
                )
            columns = delta_columns(table.schema().to_json(), f"Delta table {self.location}")
            # The library does not decode such partition values: it keeps the escapes.
            partitions = table.metadata().partition_columns
            wrong = [c.name for c in columns if c.name in partitions and pa.types.is_binary(c.type)]
            if wrong:
                raise UnsupportedError(
                    f"Delta table {self.location} is partitioned by the binary column "
                    f"{wrong[0]!r}, whose values cannot be read; partition by another column"
                )

            mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
            if mode not in ("none", "name", "id"):
                raise UnsupportedError(
                    f"Delta table {self.location}: delta.columnMapping.mode is {mode!r}; "
                    "supported are none, name and id"
                )
            finder = by_id if mode == "id" else by_name
            pinned = PinnedDelta(
                self.store, str(table.metadata().id), table.version(), tuple(columns), finder
            )
            vars(pinned)["_table"] = table  # a pickled copy opens it again
            return pinned

    def _opened(self, version: str | int | None) -> Any:
        if isinstance(version, str) and version.isdecimal():
            version = int(version)
        if isinstance(version, str) or (version is not None and version < 0):
            raise InvalidError(
                f"Delta table {self.location}: a version is a number, 0 or more; found {version!r}"
            )
        deltalake = library("deltalake", "delta", f"Delta table {self.location}")
        if version is None:
            return open_delta(self.store)
        try:
            return open_delta(self.store, version)
        except deltalake.exceptions.DeltaError as error:
            # Raises again if the error does not concern the version.
            newest = open_delta(self.store).version()
            raise NotFoundError(
                f"Delta table {self.location} has no readable version {version}; the latest one "
                f"is {newest} ({_first_line(error)})"
            ) from error


@dataclass(frozen=True)
class PinnedDelta(StoredColumns):
    """One version of a Delta table. See `PinnedSource`."""

    store: Store
    table_id: str
    number: int
    columns: tuple[StoredColumn, ...]
    find: Finder = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return PinnedDelta, (self.store, self.table_id, self.number, self.columns, self.find)

    @property
    def version(self) -> str:
        """The version number."""
        return str(self.number)

    tells_order = True

    @property
    def properties(self) -> Mapping[str, str]:
        """See `AppendableSource`. The configuration of the table."""
        with delta_errors(self.store):
            return dict(self._table.metadata().configuration)

    @property
    def cut_by(self) -> Sequence[str]:
        """See `PinnedSource`."""
        with delta_errors(self.store):
            return list(self._table.metadata().partition_columns)

    def parts(self, key_condition: Predicate | None = None) -> list[DeltaPart]:
        """See `PinnedSource`."""
        adds, dead, history = self._adds, self._dead, self._history
        paths = adds.column("path").to_pylist()
        found = places([history.origin(path) for path in paths])
        chosen = self._may_meet(key_condition)
        turns = sorted(range(len(paths)), key=lambda i: (found[i].commit, history.turn(paths[i])))
        # Whether files have the columns with their current names and types.
        features = {*(self._table.protocol().reader_features or ())}
        is_plain = not features & _WIDENING and all(
            column.name == column.stored.name and self.find is by_name for column in self.columns
        )
        types = {column.name: column.type for column in self.columns}
        parts = []
        for i in (turn for turn in turns if chosen[turn]):
            # Clones have files in other folders. Partition columns are not stored in files.
            store, path = self.store, unquote(paths[i])
            if _is_absolute(paths[i]):
                store, path = store_of_file(path, store)
            values = adds.column("partition")[i] if "partition" in adds.schema.names else {}
            part = DeltaPart(
                store,
                path,
                rows=adds.column("num_records")[i].as_py(),
                stored_bytes=adds.column("size_bytes")[i].as_py(),
                commit=found[i].commit,
                is_in_order=found[i].is_in_order,
                stored=self.columns,
                find=self.find,
                is_plain=is_plain,
                constants={name: value.cast(types[name]) for name, value in values.items()},
                dead=dead.get(paths[i]),
            )
            parts.append(part)
        return parts

    @cached_property
    def _table(self) -> Any:
        with delta_errors(self.store):
            return open_delta(self.store, self.number)

    @cached_property
    def _adds(self) -> pa.Table:
        with delta_errors(self.store):
            return pa.table(self._table.get_add_actions()).combine_chunks()

    @cached_property
    def _history(self) -> FileHistory:
        return history_of(read_commits(self.store, self.table_id, self.number), self.number)

    @cached_property
    def _dead(self) -> Mapping[str, bytes]:
        """The positions of deleted rows, by file path, for files that have some."""
        if "deletionVectors" not in (self._table.protocol().reader_features or ()):
            return {}
        paths = self._adds.column("path").to_pylist()
        local = self.store.local_path("_")
        root = self.store.uri if local is None else f"file://{local.parent}"
        known = {
            _spelt(unquote(path)) if _is_absolute(path) else f"{root}/{unquote(path)}": path
            for path in paths
        }
        found = {}
        with delta_errors(self.store):
            for batch in pa.RecordBatchReader.from_stream(self._table.deletion_vectors()):
                for uri, kept in zip(*(batch.column(i) for i in (0, 1)), strict=True):
                    path = known.get(_spelt(unquote(uri.as_py())))
                    if path is None:
                        raise DataError(
                            f"Delta table {self.store.uri}: a deletion vector belongs to "
                            f"{uri.as_py()}, which is not a file of this version"
                        )
                    mask = np.asarray(kept.values.to_numpy(zero_copy_only=False), dtype=bool)
                    found[path] = bytes(BitMap64(np.flatnonzero(~mask)).serialize())
        return found

    def _may_meet(self, key_condition: Predicate | None) -> Sequence[bool]:
        if key_condition is None or not self._adds.num_rows:
            return [True] * self._adds.num_rows
        adds, types, names = self._adds, self.schema, sorted(columns_of(key_condition))
        bounds = bounds_table(types, names, adds.num_rows)
        rows = bounds["rows"] = adds.column("num_records")
        stored = {column.name: column.stored.name for column in self.columns}
        for name in names:
            type_ = types.field(name).type
            partition = _member(adds, "partition", name)
            if partition is not None:
                values = partition.cast(type_)
                bounds[f"{name}.min"] = bounds[f"{name}.max"] = values
                bounds[f"{name}.nulls"] = pc.if_else(pc.is_null(values), rows, 0)
                continue
            low, high, nulls = (
                _member(adds, what, stored[name]) for what in ("min", "max", "null_count")
            )
            # The log's bounds of these types are exact, except that writers truncate times to
            # milliseconds.
            is_time = pa.types.is_timestamp(type_)
            checks = (pa.types.is_integer, pa.types.is_string, pa.types.is_date)
            is_exact = is_time or any(check(type_) for check in checks)
            if low is not None and high is not None and is_exact:
                high = high.cast(type_)
                highest = pc.add(high.cast(pa.int64()), 999).cast(type_) if is_time else high
                bounds[f"{name}.min"], bounds[f"{name}.max"] = low.cast(type_), highest
            if nulls is not None:
                bounds[f"{name}.nulls"] = nulls
        return may_match_files(pa.table(bounds), key_condition, types)


@dataclass(frozen=True)
class DeltaPart(ForeignPart):
    """A file of a Delta table. See `SourcePart`.

    `is_plain` means that its columns have the names and types of the table.
    """

    store: Store
    path: str
    rows: int | None
    stored_bytes: int | None
    commit: int
    is_in_order: bool
    stored: tuple[StoredColumn, ...] = field(repr=False)
    find: Finder = field(repr=False)
    is_plain: bool
    constants: Mapping[str, pa.Scalar] = field(repr=False)
    dead: bytes | None = field(repr=False)

    def __str__(self) -> str:
        return self.path

    @property
    def has_dead_rows(self) -> bool:
        """See `ParquetPart`."""
        return self.dead is not None

    def dead_rows(self) -> npt.NDArray[np.int64]:
        """See `ParquetPart`."""
        dead = BitMap64() if self.dead is None else BitMap64.deserialize(self.dead)
        return np.fromiter(dead, np.int64, len(dead))

    def file(self) -> ForeignFile:
        """See `ForeignPart`."""
        opened, uri = partial(self.store.open_input, self.path), self.store.uri_of(self.path)
        return ForeignFile(opened, uri, self.find, self.constants, self.dead_rows())

    def plain_file(self, columns: Sequence[str]) -> tuple[Store, str] | None:
        """See `ParquetPart`. Values of partition columns are not stored in files."""
        if not self.is_plain or self.constants.keys() & {*columns}:
            return None
        return self.store, self.path


def open_delta(store: Store, version: int | None = None) -> Any:
    """A `deltalake` table. Raises what it raises, and `SetupError` if it is not installed."""
    deltalake = library("deltalake", "delta", f"Delta table {store.uri}")
    options = dict(store.polars_options() or {})
    if options.get("endpoint", "").startswith("http:"):
        options.setdefault("allow_http", "true")
    local = store.local_path("_")
    root = store.uri if local is None else str(local.parent)
    return deltalake.DeltaTable(root, version=version, storage_options=options or None)


@contextmanager
def delta_errors(store: Store) -> Iterator[None]:
    """Convert errors of `deltalake` to `KeytideError`s without secrets."""
    shown = f"Delta table {store.uri}"
    try:
        yield
    except KeytideError:
        raise
    except Exception as error:
        names = {kind.__name__ for kind in type(error).__mro__}
        text = _first_line(error)
        for value in (store.polars_options() or {}).values():
            text = text.replace(value, "***") if len(value) > 3 else text
        if "TableNotFoundError" in names:
            raise NotFoundError(f"{shown}: the table does not exist ({text})") from None
        frames = traceback.walk_tb(error.__traceback__)
        modules = {frame.f_globals.get("__name__", "").split(".")[0] for frame, _ in frames}
        known = {"DeltaError", "DeltaProtocolError", "OSError", "ArrowException"}
        if not names & known and "deltalake" not in modules:
            raise  # not an error of the library
        if "DeltaProtocolError" in names or _UNSUPPORTED.search(text):
            raise UnsupportedError(
                f"{shown} requires a feature that this release does not support: {text}"
            ) from None
        if _REFUSED.search(text):
            text += ". Check the permissions and the credentials"
        raise DataError(f"{shown} cannot be read: {text}") from None


_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_REFUSED = re.compile("privileges|forbidden|unauthorized", re.IGNORECASE)
_UNSUPPORTED = re.compile("unsupported|not supported|protocol|catalog-managed", re.IGNORECASE)


def _first_line(error: Exception) -> str:
    """The message of a library without its stack trace and colors."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines()]
    said = [line for line in lines if line and not re.match(r"\d+: |at ", line)]
    return " ".join(said[:3]) or type(error).__name__


def _is_absolute(path: str) -> bool:
    """Whether a path is an absolute address. A colon alone can be part of a partition column."""
    return re.match(r"[A-Za-z][\w+.-]*:/", path) is not None


def _spelt(uri: str) -> str:
    """A normalized address. A local file can have one slash or three."""
    return re.sub("^file:/+", "file:///", uri)


def _member(adds: pa.Table, struct: str, name: str) -> pa.ChunkedArray | None:
    if struct not in adds.schema.names:
        return None
    type_ = adds.schema.field(struct).type
    return (
        pc.struct_field(adds.column(struct), [name]) if type_.get_field_index(name) >= 0 else None
    )
