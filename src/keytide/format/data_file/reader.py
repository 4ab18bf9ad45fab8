"""Readers of data files: rows as Polars DataFrames, with the columns of the current schema.

Columns are matched by field id at every depth. The extension of the file name determines the file
format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RETRACTS
from keytide.errors import DataError, KeytideError, UnsupportedError
from keytide.format.arrow import HAS_MAPS, polars_schema, polars_type
from keytide.format.cache import HashedOnce, version_of
from keytide.format.data_file import avro, orc, parquet
from keytide.format.data_file.detached_values import blob_contents, whole_variants
from keytide.format.data_file.file_format import (
    IS_DEAD,
    POSITION,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    FileFormat,
)
from keytide.format.index_files import VectorPlace, dead_positions
from keytide.format.schema import TableSchema
from keytide.options.keys import FILE_FORMAT
from keytide.store import Store
from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, RowType, has_variant

# -- conversion to the columns of the current schema -----------------------------------------------


def evolved_column(new: Field, old: Field | None, stored: pl.Schema) -> pl.Expr:
    """The column `new`, which the file has as `old`. NULL if it has none.

    `stored` are the columns of the file as Polars reads them.
    """
    target = polars_type(new)
    # A file may lack columns of its schema: not every writer stores all of them.
    if old is None or old.name not in stored:
        return pl.lit(None, dtype=target).alias(new.name)
    column = pl.col(old.name)
    mapped = _evolve(column, old.type, new.type)
    if mapped is not column or stored[old.name] != target:
        mapped = mapped.cast(target)
    return mapped.alias(new.name)


def _evolve(column: pl.Expr, old: DataType, new: DataType) -> pl.Expr:
    """Match members of nested rows by field id. Scalar casts are left to the caller."""
    if _has_same_members(old, new):
        return column
    if isinstance(old, RowType) and isinstance(new, RowType):
        by_id = {f.id: f for f in old.fields}
        members = [
            _evolve(column.struct.field(by_id[f.id].name), by_id[f.id].type, f.type).alias(f.name)
            if f.id in by_id
            else pl.lit(None, dtype=polars_type(f)).alias(f.name)
            for f in new.fields
        ]
        # A struct created from members would be a row of NULLs if the whole struct was NULL.
        return pl.when(column.is_not_null()).then(pl.struct(members))
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return column.list.eval(_evolve(pl.element(), old.element, new.element))
    if isinstance(old, MapType) and isinstance(new, MapType):
        key, value = pl.element().struct.field("key"), pl.element().struct.field("value")
        entry = pl.struct(
            _evolve(key, old.key, new.key).alias("key"),
            _evolve(value, old.value, new.value).alias("value"),
        )
        entries = column.map.entries() if HAS_MAPS else column
        return entries.list.eval(entry)
    return column


def _has_same_members(old: DataType, new: DataType) -> bool:
    """Whether nested rows have the same members with the same names, at every depth."""
    if isinstance(old, RowType) and isinstance(new, RowType):
        return [(f.id, f.name) for f in old.fields] == [(f.id, f.name) for f in new.fields] and all(
            _has_same_members(was.type, f.type)
            for was, f in zip(old.fields, new.fields, strict=True)
        )
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _has_same_members(old.element, new.element)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return _has_same_members(old.key, new.key) and _has_same_members(old.value, new.value)
    return True


# -- file formats by file name extension -----------------------------------------------------------


FORMATS: Mapping[str, FileFormat] = {"parquet": parquet, "orc": orc, "avro": avro}


def format_of(path: str) -> FileFormat:
    """How to read a file. Raises `UnsupportedError` for an unknown extension."""
    name = format_name(path)
    if name not in FORMATS:
        raise UnsupportedError(
            f"data file {path}: the format {name!r} is not supported, only {', '.join(FORMATS)}; "
            f"rewrite the file with '{FILE_FORMAT}' = 'parquet' in the engine that wrote it"
        )
    return FORMATS[name]


def format_name(path: str) -> str:
    """The format in a file's name. A codec may follow it."""
    parts = path.rsplit("/", 1)[-1].lower().split(".")[1:]
    return next((part for part in reversed(parts) if part in FORMATS), parts[-1] if parts else "")


# -- the reader ------------------------------------------------------------------------------------


Span = tuple[int, int | None]
"""The first row of a span in a file, and its number of rows. None means all rows that follow."""

WHOLE_FILE: Span = (0, None)


@dataclass(frozen=True)
class FileReader:
    """Reads rows of one data file with the columns of the current schema.

    - `fields` are the wanted table columns.
    - `file_schema` is the schema that the file was written with.
    - `constants` override columns whose value the manifest contains (partition columns, a single
      sequence number, a kind that all rows have).
    - `POSITION` and `IS_DEAD` are system columns that no file contains.
    """

    store: Store
    path: str
    file_schema: TableSchema
    fields: tuple[Field, ...]
    system_columns: tuple[str, ...] = ()
    constants: tuple[tuple[str, pl.Series], ...] = ()
    dead_rows: VectorPlace | None = None
    """Where the deletion vector is that marks rows as dead, which are then left out."""
    keeps_retracts: bool = False
    """Whether dead rows of kind -U or -D are read nevertheless."""
    size: int | None = None
    """The file length recorded in metadata, in bytes."""
    table: Store | None = None
    """The store of the vector, if it is not the store of the file."""
    kept_bytes_max: int = 0
    """The limit of the cache of this process for the next read of files."""

    def read(
        self, offset: int = 0, length: int | None = None, where: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Rows `[offset, offset + length)` that match `where`, in file order.

        Raises `DataError`, which names the path, if the file is missing, damaged or has another
        format, and `UnsupportedError` if its format is not supported.
        """
        if (self.dead_rows is not None and not self.keeps_retracts) and where is None:
            stored = replace(self, dead_rows=None).read(offset, length)
            # Much cheaper than a check of each row's position. For a plan, that check is the only
            # way.
            return stored.filter(pl.Series(self._are_live(offset, stored.height)))
        frame = self.lazy(offset, length, where)
        with _naming_file(self.store, self.path):
            return frame.collect()

    def lazy(
        self, offset: int = 0, length: int | None = None, where: pl.Expr | None = None
    ) -> pl.LazyFrame:
        """The same as a plan. From local disk, nothing is decoded yet."""
        if self.dead_rows is not None:
            vector = self.store.begin(lambda: self._dead_positions)  # in parallel with the rows
        with _naming_file(self.store, self.path):
            source = format_of(self.path).stored_file(
                self.store, self.path, self.file_schema, self.size,
                numbered=self.dead_rows is not None or POSITION in self.system_columns,
                kept_bytes_max=self.kept_bytes_max,
            )  # fmt: skip

            # The columns of the file that the expressions use.
            constants = dict(self.constants)
            old_names = {f.id: f.name for f in self.file_schema.fields}
            wanted = [old_names.get(f.id, "") for f in self.fields if f.name not in constants]
            system = [name for name in self.system_columns if name not in constants]
            if self.dead_rows is not None and self.keeps_retracts:
                system.append(VALUE_KIND)
            stored_names = [
                name for name in dict.fromkeys((*wanted, *system)) if name in source.names
            ]
            rows = source.rows(stored_names, offset, length)
            fields = self.file_schema.fields
            if any(has_variant(field.type) for field in fields):
                rows = whole_variants(rows, fields, self.store.uri_of(self.path))
            frame, stored = rows
        if self.dead_rows is not None:
            vector.result()
        if self.dead_rows is not None or IS_DEAD in self.system_columns:
            frame = self._without_dead(frame, offset, length)
        # Not `select` alone: a frame of only constants would have one row.
        names = [*(f.name for f in self.fields), *self.system_columns]
        frame = frame.with_columns(self._expressions(stored)).select(names)
        return frame if where is None else frame.filter(where)

    def read_where(self, where: pl.Expr, spans: Callable[[], Sequence[Span]]) -> pl.DataFrame:
        """All live rows that match `where`, in file order.

        No row outside the ascending `spans` matches. If few rows match, this is much faster than
        `read`, whose plan checks each row's position against the dead rows. Raises like `read`.
        """
        if self.dead_rows is None:
            return self.read(where=where)
        names = [*(f.name for f in self.fields), *self.system_columns]
        system = tuple(dict.fromkeys((*self.system_columns, POSITION)))
        numbered = replace(self, dead_rows=None, system_columns=system)
        found = pl.concat([numbered.read(*span, where) for span in spans() or [(0, 0)]])
        if found.height:
            # Whether the row at each of the ascending positions (at least one) is live.
            positions = found[POSITION].to_numpy()
            first, last = int(positions[0]), int(positions[-1])
            found = found.filter(
                pl.Series(self._are_live(first, last - first + 1)[positions - first])
            )
        return found.select(names)

    def spans(self, rows_max: int) -> list[Span]:
        """Spans that split the file into parts of at most `rows_max` rows.

        Row groups stay whole if they fit: a part of one costs as much as all of it. Reads the
        metadata of the groups. Raises like `read`.
        """
        with _naming_file(self.store, self.path):
            return [*_spans(self._group_rows(), rows_max)]

    def _group_rows(self) -> list[int]:
        group_rows = format_of(self.path).group_rows
        return group_rows(self.store, self.path, self.size, self.kept_bytes_max)

    def groups(self, names: Collection[str] = ()) -> pl.DataFrame:
        """The row groups of the file.

        Contains the `offset` and the number of `rows` of each, and `<column>.min` and `.max` for
        those `names` that are read and have known bounds. Raises like `read`.
        """
        stored = {f.id: f for f in self.file_schema.fields}
        alike = {
            field.name: stored[field.id].name
            for field in self.fields
            if field.name in names
            and field.id in stored
            and stored[field.id].type.with_nullable(True) == field.type.with_nullable(True)
        }
        with _naming_file(self.store, self.path):
            rows = pl.Series("rows", self._group_rows(), pl.Int64)
            ends = format_of(self.path).group_ends(
                self.store, self.path, [*alike.values()], self.size, self.kept_bytes_max
            )
        types = polars_schema(self.fields)
        bounds = [
            pl.Series(f"{name}.{part}", values, types[name])
            for name, old in alike.items()
            if old in ends
            for part, values in zip(("min", "max"), ends[old], strict=True)
        ]
        return pl.DataFrame([rows, *bounds]).with_columns(
            (pl.col("rows").cum_sum() - pl.col("rows")).alias("offset")
        )

    @property
    def version(self) -> tuple[Hashable, ...]:
        """Identifies the file. Raises like `read` if it is missing."""
        return version_in(self.store, self.path)

    @cached_property
    def shape(self) -> HashedOnce:
        """What rows of one file are read as, for keys of a cache."""
        return HashedOnce(
            (type(self).__qualname__, self.fields, self.system_columns, *dict(self.constants))
        )

    def _without_dead(self, frame: pl.LazyFrame, offset: int, length: int | None) -> pl.LazyFrame:
        """The rows that are read, including whether they are dead if that is requested."""
        if self.dead_rows is None:
            is_dead = pl.lit(value=False)
        else:
            dead = pl.Series(self._dead_within(offset, length), dtype=pl.UInt32)
            is_dead = pl.col(POSITION).is_in(dead.implode())
            is_read = ~is_dead
            if self.keeps_retracts:
                is_read |= pl.col(VALUE_KIND).is_in(list(RETRACTS))
            frame = frame.filter(is_read)
        if IS_DEAD not in self.system_columns:
            return frame
        return frame.with_columns(is_dead.alias(IS_DEAD))

    def _are_live(self, offset: int, count: int) -> npt.NDArray[np.bool_]:
        """Whether each of `count` rows, starting at `offset`, is live."""
        are_live = np.ones(count, np.bool_)
        are_live[self._dead_within(offset, count) - offset] = False
        return are_live

    def _dead_within(self, offset: int, length: int | None) -> npt.NDArray[np.int64]:
        """The positions of the dead rows among some rows."""
        dead = self._dead_positions
        stop = len(dead) if length is None else np.searchsorted(dead, offset + length)
        return dead[np.searchsorted(dead, offset) : stop]

    @cached_property
    def _dead_positions(self) -> npt.NDArray[np.int64]:
        assert self.dead_rows is not None
        return dead_positions(self.table or self.store, self.dead_rows)

    def _expressions(self, stored: pl.Schema) -> list[pl.Expr]:
        constants = dict(self.constants)
        old_fields = {f.id: f for f in self.file_schema.fields}
        expressions = []
        for f in self.fields:
            if f.name in constants:
                expressions.append(_literal(constants[f.name]).alias(f.name))
                continue
            old = old_fields.get(f.id)
            column = evolved_column(f, old, stored)
            is_blob = isinstance(f.type, AtomicType) and f.type.root == "BLOB"
            if is_blob and old is not None and old.name in stored:
                contents = partial(blob_contents, self.store, self.path)
                column = column.map_batches(contents, return_dtype=pl.Binary)
            expressions.append(column)
        for name in self.system_columns:
            if name in constants:
                expressions.append(_literal(constants[name]).alias(name))
            else:
                expressions.append(pl.col(name).cast(_SYSTEM_TYPES[name]))
        return expressions


_SYSTEM_TYPES = {
    SEQUENCE_NUMBER: pl.Int64, VALUE_KIND: pl.Int8, POSITION: pl.Int64, IS_DEAD: pl.Boolean,
}  # fmt: skip


def version_in(store: Store, path: str) -> tuple[Hashable, ...]:
    """Identifies a data file. Raises like `FileReader.read` if it is missing."""
    with _naming_file(store, path):
        return version_of(store, path)


def read_note(store: Store, path: str, key: str) -> str | None:
    """The note that was stored under a key when a file was written.

    Raises like `FileReader.read`.
    """
    with _naming_file(store, path):
        file_format = FORMATS.get(format_name(path))
        return None if file_format is None else file_format.note(store, path, key)


def read_together(readers: Sequence[FileReader], where: pl.Expr | None = None) -> pl.DataFrame:
    """The rows of several files that match `where`, file by file, as in `FileReader.read`.

    For small files, this is much faster than reading one after the other.
    """
    frames = _lazy_frames([(reader, WHOLE_FILE) for reader in readers], where)
    try:
        return pl.concat(frames).collect().rechunk()  # the caller gets no small chunks
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        # One of them is damaged. Reading them individually names it.
        return pl.concat([reader.read(where=where) for reader in readers])


def read_side_by_side(
    reads: Sequence[tuple[FileReader, Span]], where: pl.Expr | None = None
) -> list[pl.DataFrame]:
    """The rows of each span that match `where`, as in `FileReader.read`.

    If few rows match, this is much faster than reading one after the other. All rows are in memory.
    """
    frames = _lazy_frames(reads, where)
    try:
        return pl.collect_all(frames)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return [reader.read(*span, where) for reader, span in reads]


def _lazy_frames(
    reads: Sequence[tuple[FileReader, Span]], where: pl.Expr | None
) -> list[pl.LazyFrame]:
    """Plans of several reads, whose bytes are fetched in parallel."""
    calls = [partial(reader.lazy, *span, where) for reader, span in reads]
    return reads[0][0].store.together(calls) if reads else []


def spans_of(groups: pl.DataFrame, rows_max: int) -> list[Span]:
    """Spans of some row groups of a file, as `FileReader.spans` returns for all."""
    stretches: list[tuple[int, list[int]]] = []
    end = -1
    for offset, rows in groups.select("offset", "rows").iter_rows():
        if offset != end:
            stretches.append((offset, []))
        stretches[-1][1].append(rows)
        end = offset + rows
    return [
        (first + start, length)
        for first, group_rows in stretches
        for start, length in _spans(group_rows, rows_max)
    ]


def _spans(group_rows: Sequence[int], rows_max: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    start = length = 0
    for rows in group_rows:
        if length and length + rows > rows_max:
            spans.append((start, length))
            start, length = start + length, 0
        length += rows
        while length > rows_max:
            spans.append((start, rows_max))
            start, length = start + rows_max, length - rows_max
    return [*spans, (start, length)] if length else spans


@contextmanager
def _naming_file(store: Store, path: str) -> Iterator[None]:
    """A block in which a file that cannot be read raises a `DataError` that names it."""
    try:
        yield
    except KeytideError:
        raise
    except (
        OSError, UnicodeError, pa.ArrowException, pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
    ) as error:  # fmt: skip
        uri = store.uri_of(path)
        store.forget([path])  # after it is restored, it must be read again
        if not store.exists(path):
            with suppress(DataError):
                store.size(path)  # raises SetupError in a folder that is not the table's
            raise missing_file(uri) from error
        raise DataError(
            f"data file {uri} is damaged or not {format_name(path)} ({error}); restore it, or read "
            f"an older snapshot. Other partitions are still readable"
        ) from error


def missing_file(uri: str) -> DataError:
    """The error for a data file that does not exist."""
    return DataError(
        f"data file {uri} is missing, but a snapshot references it; restore it, or read an older "
        "snapshot. Other partitions are still readable"
    )


def _literal(value: pl.Series) -> pl.Expr:
    """The value of a one-element series. With a series, Polars would not filter while it reads."""
    if value.dtype.is_temporal():  # Python's times have no nanoseconds
        return pl.lit(value.to_physical()[0]).cast(value.dtype)
    return pl.lit(value[0], dtype=value.dtype)
