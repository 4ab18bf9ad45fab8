"""Rows of a data file as a Polars frame, in the shape of the table's current schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.errors import DataError, KeytideError, UnsupportedError
from keytide.format.arrow import from_arrow
from keytide.format.checksum import byte_ranges, check_blocks, check_footer
from keytide.format.data_file.evolved import evolved_column
from keytide.format.data_file.layout import SEQUENCE_NUMBER
from keytide.format.deletion_vector import VectorPlace, dead_positions
from keytide.format.schema import TableSchema
from keytide.options.keys import FILE_FORMAT
from keytide.scratch import scratch
from keytide.store import Store
from keytide.types import Field

__all__ = ["WHOLE_FILE", "FileReader", "Span", "read_together"]

# Planning a lazy read of a smaller file takes longer than reading all of it.
_LAZY_FILE_BYTES_MIN = 128 << 10

Span = tuple[int, int | None]
"""Where some rows of a file begin, and how many they are; None stands for all that follow."""

WHOLE_FILE: Span = (0, None)


@dataclass(frozen=True)
class FileReader:
    """Reads rows of one data file in the shape of the current schema.

    `fields` are the table columns wanted; `file_schema` is the schema that the file was
    written with; `constants` override columns whose value the manifest knows (partition
    columns, a single sequence number, a kind that no row departs from).
    """

    store: Store
    path: str
    file_schema: TableSchema
    fields: tuple[Field, ...]
    system_columns: tuple[str, ...] = ()
    constants: tuple[tuple[str, pl.Series], ...] = ()
    dead_rows: VectorPlace | None = None
    """Where a deletion vector marks rows as dead, which are then left out."""

    def read(
        self, offset: int = 0, length: int | None = None, where: pl.Expr | None = None
    ) -> pl.DataFrame:
        """Rows `[offset, offset + length)` that fulfil `where`, in file order.

        Raises `DataError` naming the path when the file is missing, torn or not Parquet.
        """
        frame = self.lazy(offset, length, where)
        with _naming_file(self.store, self.path):
            return frame.collect()

    def lazy(
        self, offset: int = 0, length: int | None = None, where: pl.Expr | None = None
    ) -> pl.LazyFrame:
        """The same as a plan; from local disk nothing is decoded yet."""
        with _naming_file(self.store, self.path):
            source = _open(self.store, self.path, numbered=self.dead_rows is not None)
            names = self._stored_names(source.names)
            whole = offset == 0 and length is None and len(names) == len(source.names)
            # None checks every block without a look at where the columns lie.
            wanted = None if whole else partial(byte_ranges, names, offset, length)
            check_blocks(self.store, self.path, wanted)
            frame, stored = source.rows(names, offset, length)
        if self.dead_rows is not None:
            frame = frame.filter(~pl.col(_POSITION).is_in(self._dead_positions.implode()))
        # Not `select` alone: a frame of nothing but constants would have one row.
        names = [*(f.name for f in self.fields), *self.system_columns]
        frame = frame.with_columns(self._expressions(stored)).select(names)
        return frame if where is None else frame.filter(where)

    def spans(self, rows_max: int) -> list[Span]:
        """Spans that cut the file into parts of at most `rows_max` rows.

        Row groups stay whole where they fit, because a part of one costs as much as all of it.
        Reads the footer; raises like `read`.
        """
        with _naming_file(self.store, self.path), self.store.open_input(self.path) as file:
            check_footer(file)
            footer = pq.read_metadata(file)
        return _spans(
            [footer.row_group(i).num_rows for i in range(footer.num_row_groups)], rows_max
        )

    @cached_property
    def _dead_positions(self) -> pl.Series:
        assert self.dead_rows is not None
        return pl.Series(dead_positions(self.store, self.dead_rows), dtype=pl.UInt32)

    def _stored_names(self, stored: Sequence[str]) -> list[str]:
        """The columns of the file that the expressions look at."""
        constants = dict(self.constants)
        old_names = {f.id: f.name for f in self.file_schema.fields}
        wanted = [old_names.get(f.id, "") for f in self.fields if f.name not in constants]
        system = [name for name in self.system_columns if name not in constants]
        return [name for name in (*wanted, *system) if name in stored]

    def _expressions(self, stored: pl.Schema) -> list[pl.Expr]:
        constants = dict(self.constants)
        old_fields = {f.id: f for f in self.file_schema.fields}
        expressions = []
        for f in self.fields:
            if f.name in constants:
                expressions.append(_literal(constants[f.name]).alias(f.name))
                continue
            expressions.append(evolved_column(f, old_fields.get(f.id), stored))
        for name in self.system_columns:
            if name in constants:
                expressions.append(_literal(constants[name]).alias(name))
            else:
                dtype = pl.Int64 if name == SEQUENCE_NUMBER else pl.Int8
                expressions.append(pl.col(name).cast(dtype))
        return expressions


def read_together(readers: Sequence[FileReader], where: pl.Expr | None = None) -> pl.DataFrame:
    """The rows of several files that fulfil `where`, file by file, as `FileReader.read` gives them.

    Takes far less time for small files than one after the other.
    """
    frames = [reader.lazy(where=where) for reader in readers]
    try:
        return pl.concat(frames).collect().rechunk()  # whoever goes on has no small chunks
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        # One of them is torn: read alone, it is named.
        return pl.concat([reader.read(where=where) for reader in readers])


def _spans(group_rows: Sequence[int], rows_max: int) -> list[Span]:
    spans: list[Span] = []
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


_POSITION = scratch("position")


@dataclass(frozen=True)
class _MappedFile:
    """A large file on local disk, which Polars maps and reads with all cores."""

    frame: pl.LazyFrame
    schema: pl.Schema

    @property
    def names(self) -> Sequence[str]:
        return self.schema.names()

    def rows(
        self, names: Sequence[str], offset: int, length: int | None
    ) -> tuple[pl.LazyFrame, pl.Schema]:
        whole = offset == 0 and length is None
        return (self.frame if whole else self.frame.slice(offset, length)), self.schema


@dataclass(frozen=True)
class _FetchedFile:
    """A file in an object store or a small one: the column chunks of the wanted rows are read."""

    file: pq.ParquetFile
    names: Sequence[str]
    numbered: bool

    def rows(
        self, names: Sequence[str], offset: int, length: int | None
    ) -> tuple[pl.LazyFrame, pl.Schema]:
        metadata = self.file.metadata
        stop = metadata.num_rows if length is None else min(offset + length, metadata.num_rows)
        groups: list[int] = []
        first_row, start = 0, 0
        for group in range(metadata.num_row_groups):
            end = start + metadata.row_group(group).num_rows
            if start < stop and end > offset:
                first_row = start if not groups else first_row
                groups.append(group)
            start = end
        # Some column is always read: of none, Arrow would not know how many rows there are.
        table = self.file.read_row_groups(groups, columns=names or self.names[:1])
        frame = from_arrow(table.slice(offset - first_row, stop - offset))
        rows = frame.with_row_index(_POSITION, offset) if self.numbered else frame
        return rows.lazy(), frame.schema


def _open(store: Store, path: str, *, numbered: bool) -> _MappedFile | _FetchedFile:
    if not path.endswith(".parquet"):
        raise UnsupportedError(
            f"{store.uri_of(path)}: only Parquet data files can be read; this one was written "
            f"by another engine. Rewrite it there with '{FILE_FORMAT}' = 'parquet'"
        )
    local = store.local_path(path)
    if local is not None and local.stat().st_size >= _LAZY_FILE_BYTES_MIN:
        # A row index keeps Polars from skipping row groups, so only deletion vectors get one.
        frame = pl.scan_parquet(
            local,
            glob=False,
            hive_partitioning=False,
            row_index_name=_POSITION if numbered else None,
        )
        return _MappedFile(frame, frame.collect_schema())
    source = store.open_input(path)
    # pre_buffer joins neighbouring column chunks into one request.
    file = pq.ParquetFile(source, pre_buffer=local is None, page_checksum_verification=True)
    return _FetchedFile(file, file.schema_arrow.names, numbered)


@contextmanager
def _naming_file(store: Store, path: str) -> Iterator[None]:
    """A block in which a file that cannot be read is a `DataError` that names it."""
    try:
        yield
    except KeytideError:
        raise
    except (OSError, UnicodeError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise _unreadable(store, path, error) from error
    except BaseException as error:
        if isinstance(error, pl.exceptions.PanicException):
            raise _unreadable(store, path, error) from error
        raise


def _unreadable(store: Store, path: str, error: BaseException) -> DataError:
    uri = store.uri_of(path)
    if not store.exists(path):
        return DataError(
            f"data file {uri} is missing although a snapshot names it; restore it, or read an "
            f"older snapshot. Other partitions stay readable"
        )
    return DataError(
        f"data file {uri} is torn or not Parquet ({error}); restore it, or read an older "
        f"snapshot. Other partitions stay readable"
    )


def _literal(value: pl.Series) -> pl.Expr:
    """The value of a series of one: behind a series, Polars would not filter while it reads."""
    if value.dtype.is_temporal():  # Python's times have no nanoseconds
        return pl.lit(value.to_physical()[0]).cast(value.dtype)
    return pl.lit(value[0], dtype=value.dtype)
