"""ORC data files.

ORC has no time of day, and no instants as Java's writers use them: a TIME is stored as an INT of
milliseconds, and a timestamp with local time zone as UTC wall-clock time. Arrow reads ORC
timestamps as nanoseconds, which end in the year 2262, and writes fractions of seconds before 1970
in a way that other readers misread. So neither is written.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.orc as po

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property
from keytide.errors import InvalidError, SetupError
from keytide.format.arrow import from_arrow
from keytide.format.data_file.file_format import (
    GroupEnds,
    Rows,
    StoredFile,
    numbered_rows,
    physical_schema,
)
from keytide.format.parquet_encoding import densest
from keytide.format.schema import TableSchema
from keytide.options.keys import FILE_FORMAT
from keytide.store import Store

_STRIPE_BYTES = 64 << 20
_CODECS = {"gzip": "zlib", "none": "uncompressed"}


def stored_file(
    store: Store,
    path: str,
    schema: TableSchema,
    size: int | None,
    *,
    numbered: bool,
    kept_bytes_max: int,
) -> StoredFile:
    """The file. Its types come from the schema that it was written with."""
    file = po.ORCFile(store.open_input(path))
    expected = physical_schema(schema)
    there = [expected.field(name) for name in file.schema.names if name in expected.names]
    columns = pa.schema(there).remove_metadata()
    return _StripedFile(file, columns, columns.names, numbered)


def group_ends(
    store: Store, path: str, names: Sequence[str], size: int | None, kept_bytes_max: int
) -> dict[str, GroupEnds]:
    """Empty: files of this format are read as a whole."""
    return {}


def group_rows(store: Store, path: str, size: int | None, kept_bytes_max: int) -> list[int]:
    """The number of rows in each stripe, which only reading shows."""
    with store.open_input(path) as source:
        return _stripe_rows(po.ORCFile(source))


def note(store: Store, path: str, key: str) -> str | None:
    """A note in an attribute of the first column."""
    with store.open_input(path) as source:
        found = (po.ORCFile(source).schema.field(0).metadata or {}).get(key.encode())
    return None if found is None else found.decode()


def check_columns(columns: pa.Schema) -> None:
    """All columns are supported."""


def write(
    output: Any,
    rows: pa.Table,
    codec: str,
    zstd_level: int,
    notes: Mapping[str, str],
    *,
    dictionaries: bool = True,
) -> None:
    """Write rows. ORC's own compression level replaces `zstd_level`.

    Arrow writes no file metadata, but attributes of columns.
    """
    codec = densest(codec)
    with po.ORCWriter(
        output, compression=_CODECS.get(codec, codec), stripe_size=_STRIPE_BYTES
    ) as writer:
        # Rows in the types of ORC. Raises `InvalidError` for a time that could not be read.
        columns = list(map(_as_stored_column, rows.schema, rows.columns))
        stored = pa.Table.from_arrays(columns, names=rows.schema.names)
        first = stored.schema.field(0)
        schema = stored.schema.set(0, first.with_metadata(notes) if notes else first)
        writer.write(pa.Table.from_arrays(columns, schema=schema))


@dataclass(frozen=True)
class _StripedFile:
    """A file of which the stripes with wanted rows are read."""

    file: po.ORCFile
    columns: pa.Schema
    names: Sequence[str]
    numbered: bool

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """The decoded rows."""
        names = list(names or self.names[:1])
        schema = pa.schema([self.columns.field(name) for name in names])
        if any(_has_timestamps(t) for t in schema.types) and _wraps_timestamps():
            raise SetupError(
                f"pyarrow {pa.__version__} reads wrong timestamps from ORC files, without "
                f"an error, for times before 1678 and after 2262; install a newer version"
            )
        stop = self.file.nrows if length is None else min(offset + length, self.file.nrows)
        pieces, start = [], 0
        for stripe, count in enumerate(self._stripe_rows):
            first, last = max(offset - start, 0), min(stop - start, count)
            if first < last:
                batch = self.file.read_stripe(stripe, columns=names)
                piece = pa.Table.from_batches([batch]).select(names)
                pieces.append(piece.slice(first, last - first).cast(schema))
            start += count
        table = pa.concat_tables([schema.empty_table(), *pieces])
        return numbered_rows(from_arrow(table), offset, numbered=self.numbered)

    @cached_property
    def _stripe_rows(self) -> list[int]:
        return _stripe_rows(self.file)


def _stripe_rows(file: po.ORCFile) -> list[int]:
    if file.nstripes == 1:
        return [file.nrows]
    narrow = min(zip(file.schema.types, file.schema.names, strict=True), key=_width)[1]
    stripes = (file.read_stripe(i, columns=[narrow]) for i in range(file.nstripes))
    return [stripe.num_rows for stripe in stripes]


def _width(column: tuple[pa.DataType, str]) -> int:
    try:
        return int(column[0].bit_width)
    except ValueError:
        return 1 << 16


# -- types in another stored form ------------------------------------------------------------------


def _as_stored_column(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        stored = column.cast(_stored_type(field.type))
    except pa.ArrowInvalid as error:
        raise _not_storable(field.name, f"times before 1678 and after 2262 ({error})") from error
    if pa.types.is_nested(field.type):
        # In a slice, Arrow's writer uses the NULLs of other rows, so rows outside the slice are
        # dropped.
        stored = pa.chunked_array([pa.concat_arrays([c]) for c in stored.chunks], stored.type)
    chunks = stored.chunks if _has_timestamps(field.type) else ()
    for times in itertools.chain.from_iterable(map(_timestamps, chunks)):
        ticks = times.cast(pa.int64()).drop_null().to_numpy()
        if ((ticks < 0) & (ticks % 1_000_000_000 != 0)).any():
            raise _not_storable(field.name, "times before 1970 with fractions of a second")
    return stored


def _not_storable(name: str, what: str) -> InvalidError:
    return InvalidError(
        f"column {name!r}: ORC files do not support {what}; write the table with "
        f"'{FILE_FORMAT}' = 'parquet'"
    )


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """The timestamps in an array, at any depth."""
    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for member in array.flatten():
            yield from _timestamps(member)
    elif pa.types.is_map(array.type):
        yield from _timestamps(array.keys)
        yield from _timestamps(array.items)
    elif pa.types.is_list(array.type):
        yield from _timestamps(array.flatten())


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns")
    if pa.types.is_time(kind):
        return pa.int32()
    if pa.types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type), _stored_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_stored_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _stored_type(f.type)) for f in kind.fields])
    return kind


def _has_timestamps(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_timestamps(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind))


@lru_cache(maxsize=1)
def _wraps_timestamps() -> bool:
    """Whether Arrow wraps times beyond its nanoseconds, as older releases do."""
    first = pa.table({"t": pa.array([datetime.min], pa.timestamp("us"))})
    file = io.BytesIO()
    po.write_table(first, file)
    try:
        po.ORCFile(io.BytesIO(file.getvalue())).read()
    except pa.ArrowInvalid:
        return False
    return True
