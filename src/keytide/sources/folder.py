"""Folders with files of other engines as sources, on local disk or in an object store.

Files are in the folder or at any depth below it. `name=value` in a path is a column (Hive
partitions). Names that begin with `_` or `.` are ignored. The order of files and rows is unknown,
because neither file times nor file names define it (rule R3 of docs/semantics.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property
from keytide.errors import DataError, InvalidError, KeytideError, NotFoundError, UnsupportedError
from keytide.format.cache import METADATA
from keytide.predicate.predicate import Predicate, columns_of, conjunction, conjuncts, row_filter
from keytide.predicate.value_columns import stored_column
from keytide.sources.files import FileFacts, FileFormat, ParquetFiles
from keytide.sources.parquet import POSITION, ParquetPart
from keytide.sources.source import Place
from keytide.store import ObjectInfo, Store, store_of_file
from keytide.types import Field, type_from_arrow

# Measured size of the facts about a file, per column.
_FACTS_BYTES = 200
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def open_folder(place: Place, format_: FileFormat) -> FolderSource:
    """A folder of files of one format. Nothing is read yet."""
    store = store_of_file(f"{place.location.rstrip('/')}/x", place.near)[0].uncached()
    return FolderSource(store, format_, place.columns, frozenset(place.needed))


@dataclass(frozen=True)
class FolderSource:
    """Files in a folder. The store is rooted there. `declared` are columns from a definition.

    Those of them that are `needed` must be in some file.
    """

    store: Store
    format: FileFormat
    declared: pa.Schema | None = None
    needed: frozenset[str] = frozenset()

    @property
    def location(self) -> str:
        """See `Source`."""
        return self.store.uri

    def pin(self, version: str | int | None = None) -> PinnedFolder:
        """See `Source`. A folder has no versions, so the existing files are pinned."""
        if version is not None:
            raise UnsupportedError(
                f"{self.location}: a folder of files has no versions, found {version!r}; read it "
                "without a version"
            )
        try:
            there = [
                file
                for file in self.store.list()
                if file.size > 0 and all(map(_is_shown, file.path.split("/")))
            ]
        except OSError as error:
            raise DataError(
                f"the files at {self.location} cannot be listed: {error}; remove links that lead "
                "in a circle"
            ) from error
        local = self.store.local_path("x")
        if not there and (local is None or not local.parent.is_dir()):
            raise NotFoundError(
                f"there are no files at {self.location}; check the path of the folder"
            )
        walk = () if local is None else os.walk(local.parent, followlinks=True)
        for folder, below, names in walk:
            below[:] = filter(_is_shown, below)
            for path in map(Path(folder).joinpath, filter(_is_shown, names)):
                if path.is_symlink() and not path.exists():
                    raise DataError(
                        f"{path} is a link to a file that does not exist; restore the file, or "
                        "remove the link"
                    )
        files = tuple(sorted(there, key=lambda file: file.path))
        return PinnedFolder(self.store, self.format, files, self.declared, self.needed)


def _is_shown(name: str) -> bool:
    return name[:1] not in ("_", ".")


@dataclass(frozen=True)
class PinnedFolder:
    """The files in a folder at one moment."""

    store: Store
    format: FileFormat
    files: tuple[ObjectInfo, ...]
    declared: pa.Schema | None
    needed: frozenset[str] = frozenset()

    cut_by = ()  # nothing is in order anyway
    version = None

    @cached_property
    def schema(self) -> pa.Schema:
        """See `PinnedSource`. The columns of files come first, then those of paths."""
        types: dict[str, pa.DataType] = {}
        for file, facts in zip(self.files, self._facts, strict=True):
            if len({*facts.schema.names}) < len(facts.schema.names):
                raise DataError(
                    f"{self.store.uri_of(file.path)} has two columns with the same name among "
                    f"{', '.join(facts.schema.names)}; rename one of them"
                )
            for field in facts.schema:
                # A type that fits the values of all files.
                known = types.get(field.name, field.type)
                try:
                    types[field.name] = _common(known, field.type)
                except (pa.ArrowException, KeytideError) as error:
                    raise DataError(
                        f"{self.store.uri_of(file.path)}: column {field.name!r} is {field.type} "
                        f"in this file, but {known} in others ({error}); all files must have the "
                        "same type"
                    ) from error
        if self.declared is not None and not (self.files and self.format.names_its_columns):
            needed = self.needed if self.files else ()
            absent = {f.name: f.type for f in self.declared if f.name not in needed}
            types = {**absent, **types}
        for name in [*self._partitions[0]] if self.files else []:
            types.pop(name, None)
            types[name] = self._partition_type(name)
        return pa.schema(list(types.items()))

    def parts(self, key_condition: Predicate | None = None) -> list[FilePart]:
        """See `PinnedSource`."""
        schema = self.schema
        kind = ParquetFilePart if isinstance(self.format, ParquetFiles) else FilePart
        parts = []
        for file, facts, partition in zip(self.files, self._facts, self._partitions, strict=True):
            terms = [t for t in conjuncts(key_condition) if columns_of(t) <= partition.keys()]
            about_path = conjunction(terms)
            if about_path is not None:
                # Whether files of the partition can have rows with a matching key.
                there = [schema.field(name) for name in columns_of(about_path)]
                fields = [Field(-1, f.name, type_from_arrow(f.type)) for f in there]
                row = pl.DataFrame(
                    pl.from_arrow(pa.table({f.name: _constants(partition, f, 1) for f in there}))
                )
                if not row.filter(row_filter(about_path, fields)).height:
                    continue
            parts.append(kind(self.store, self.format, file, facts, schema, partition))
        return parts

    @cached_property
    def _facts(self) -> list[FileFacts]:
        """The facts about each file, read in parallel, and cached until the file changes."""
        return self.store.together([partial(self._facts_of, file) for file in self.files])

    def _facts_of(self, file: ObjectInfo) -> FileFacts:
        def read() -> tuple[FileFacts, int]:
            facts = self.format.facts(self.store, file.path, self.declared)
            return facts, _FACTS_BYTES * (1 + len(facts.schema.names))

        place = self.store.identity, file.path, file.size, file.modified_ms
        return METADATA.load((*place, self.format, self.declared), read)

    @cached_property
    def _partitions(self) -> list[dict[str, str | None]]:
        """The values in the paths. Raises `DataError` if files have different partition columns."""
        found: list[dict[str, str | None]] = []
        for file in self.files:
            values: dict[str, str | None] = {}
            for part in file.path.split("/")[:-1]:
                name, sign, value = part.partition("=")
                if sign:
                    is_null = value == _NULL_PARTITION
                    values[unquote(name)] = None if is_null else unquote(value)
            found.append(values)
        other = next((place for place, one in enumerate(found) if [*one] != [*found[0]]), None)
        if other is not None:
            raise DataError(
                f"{self.store.uri} has the partition columns ({', '.join(found[0])}) in the path "
                f"of {self.files[0].path}, but ({', '.join(found[other])}) in that of "
                f"{self.files[other].path}; all paths must have the same ones"
            )
        return found

    def _partition_type(self, name: str) -> pa.DataType:
        if self.declared is not None and name in self.declared.names:
            return self.declared.field(name).type
        values = [partition[name] for partition in self._partitions]
        texts = pa.array(values, pa.string())
        for type_ in (pa.int64(), pa.date32()):
            try:
                # A value that is not written like a number, such as 007, is a string.
                if texts.cast(type_).cast(pa.string()).equals(texts):
                    return type_
            except pa.ArrowException:  # noqa: PERF203  # one of two types
                continue
        return pa.string()


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    types = [type_from_arrow(each).to_arrow() if not pa.types.is_null(each) else each
             for each in (one, other)]  # fmt: skip
    if types[0].equals(types[1]):
        return types[0]
    fields = [pa.schema([("c", each)]) for each in types]
    return pa.unify_schemas(fields, promote_options="permissive").field(0).type


def _constants(partition: Mapping[str, str | None], field: pa.Field, rows: int) -> pa.Array:
    """A column with the value from a path. Raises `DataError` if it does not have the type."""
    try:
        value = pa.array([partition[field.name]], pa.string()).cast(field.type)[0]
    except pa.ArrowException as error:
        raise DataError(
            f"the path of a file says {field.name}={partition[field.name]}, which is not a valid "
            f"{field.type}: {error}"
        ) from error
    return pa.repeat(value, rows)


@dataclass(frozen=True)
class FilePart:
    """One file of a folder."""

    store: Store
    format: FileFormat
    file: ObjectInfo
    facts: FileFacts
    schema: pa.Schema
    partition: Mapping[str, str | None]

    commit = 0  # commits have no order
    is_in_order = False

    def __str__(self) -> str:
        return self.file.path

    @property
    def rows(self) -> int | None:
        """See `SourcePart`."""
        return self.facts.rows

    @property
    def stored_bytes(self) -> int:
        """See `SourcePart`."""
        return self.file.size

    def batches(
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `SourcePart`. Raises `DataError` naming the file."""
        read = self._read(columns)
        found = self.format.batches(self.store, self.file.path, read, rows_max, key_condition)
        for batch in found:
            yield self._whole(batch, columns)

    def _read(self, columns: Sequence[str]) -> pa.Schema:
        """The columns to read. If a file has none of them, any column, to count rows."""
        given = pa.schema(
            [self.schema.field(n) for n in columns
             if n in self.facts.schema.names and n not in self.partition]
        )  # fmt: skip
        return given if given.names else self.facts.schema

    def _whole(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        fields = [self.schema.field(name) for name in columns]
        values = []
        for field in fields:
            if field.name in self.partition:
                values.append(_constants(self.partition, field, batch.num_rows))
                continue
            if field.name not in batch.schema.names:
                values.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(field.name)
            if not column.type.equals(field.type):
                as_field = Field(-1, field.name, type_from_arrow(field.type))
                chunks = pa.chunked_array([column])
                try:
                    column = stored_column(chunks, as_field, self.file.path).combine_chunks()
                except InvalidError as error:
                    raise DataError(f"{self.store.uri_of(self.file.path)}: {error}") from error
            values.append(column)
        return pa.record_batch(values, schema=pa.schema(fields))


@dataclass(frozen=True)
class ParquetFilePart(ParquetPart, FilePart):
    """One Parquet file of a folder."""

    def plain_file(self, columns: Sequence[str]) -> tuple[Store, str] | None:
        """See `ParquetPart`."""
        there = self.facts.schema
        lowered = {name.lower() for name in there.names}
        if len(lowered) < len(there.names) or self.partition.keys() & {*columns}:
            return None
        for name in columns:
            if name not in there.names:
                if name.lower() in lowered:
                    return None
                continue
            # Whether the types are stored identically, regardless of their form in memory.
            stored, wanted = there.field(name).type, self.schema.field(name).type
            is_alike = any({stored, wanted} <= alike for alike in _ALIKE)
            if not is_alike and not stored.equals(wanted):
                return None
        return self.store, self.file.path

    def placed_batches(
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `ParquetPart`. Raises `DataError` naming the file."""
        read = self._read(columns)
        found = ParquetFiles().placed_batches(
            self.store, self.file.path, read, rows_max, key_condition
        )
        for first, batch in found:
            positions = pa.array(np.arange(first, first + batch.num_rows))
            yield self._whole(batch, columns).append_column(POSITION, positions)


_ALIKE = ({pa.string(), pa.large_string()}, {pa.binary(), pa.large_binary()})
