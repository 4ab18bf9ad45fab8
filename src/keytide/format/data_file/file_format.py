"""The interface of a file format for data files, their columns, and their bloom filters.

Parquet, ORC and Avro implement it. The columns are the keys, the sequence number, the kind, and
every column of the table. Bloom filters are created with a data file, and stored in the manifest or
in a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.base.process import scratch
from keytide.format.file_index import (
    BLOOM_FILTER,
    ColumnIndexes,
    bloom_filter,
    encode_file_index,
    has_hash,
    value_hashes,
)
from keytide.format.paths import index_name
from keytide.format.schema import SEQUENCE_FIELD_ID, VALUE_KIND_FIELD_ID, TableSchema
from keytide.store import Store
from keytide.types import ArrayType, DataType, MapType, MultisetType, RowType

# -- the interface of a file format for data files -------------------------------------------------


POSITION = scratch("position")
"""The column with the number of each row in its file, starting at 0."""

IS_DEAD = scratch("is_dead")
"""The column that says whether a deletion vector marks a row as dead."""


Rows: TypeAlias = "tuple[pl.LazyFrame, pl.Schema]"
"""Rows as a plan, and their columns as Polars reads them."""


GroupEnds: TypeAlias = "tuple[list[Any], list[Any]]"
"""The smallest and the largest value of each part of a file. None if unknown."""


class StoredFile(Protocol):
    """An open data file, with columns in the types of the schema that it was written with."""

    @property
    def names(self) -> Sequence[str]:
        """The columns of the file."""

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """Rows `[offset, offset + length)` with at least the columns `names`, in file order.

        Includes `POSITION` if it was requested.
        """


class FileFormat(Protocol):
    """Reads and writes the files of one format. Raises the errors of the library that it uses."""

    def stored_file(
        self,
        store: Store,
        path: str,
        schema: TableSchema,
        size: int | None,
        *,
        numbered: bool,
        kept_bytes_max: int,
    ) -> StoredFile:
        """A file that was written with `schema`. `numbered` requests the column `POSITION`.

        `size` is the recorded size in bytes, which a format without a footer uses to detect
        truncated files. `kept_bytes_max` limits the format's cache for all files.
        """

    def group_rows(
        self, store: Store, path: str, size: int | None, kept_bytes_max: int
    ) -> list[int]:
        """The number of rows in each part in which a file is read, in order."""

    def group_ends(
        self, store: Store, path: str, names: Sequence[str], size: int | None, kept_bytes_max: int
    ) -> dict[str, GroupEnds]:
        """The smallest and the largest value of each part, for those columns for which they are
        known.

        Only for types whose values compare like Python values. `kept_bytes_max` as above.
        """

    def check_columns(self, columns: pa.Schema) -> None:
        """Raise `InvalidError` for columns that files of the format cannot contain."""

    def write(
        self,
        output: Any,
        rows: pa.Table,
        codec: str,
        zstd_level: int,
        notes: Mapping[str, str],
        *,
        dictionaries: bool = True,
    ) -> None:
        """Write rows and notes to a binary file, with field ids if the format supports them.

        Without `dictionaries`, no column of a Parquet file has one.
        """

    def note(self, store: Store, path: str, key: str) -> str | None:
        """The note that was stored under a key when a file was written."""


def numbered_rows(frame: pl.DataFrame, offset: int, *, numbered: bool) -> Rows:
    """Rows that begin at `offset` of their file, with their positions if requested."""
    rows = frame.with_row_index(POSITION, offset) if numbered else frame
    return rows.lazy(), frame.schema


# -- the columns of a data file --------------------------------------------------------------------


SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
VALUE_KIND = "_VALUE_KIND"


def physical_schema(schema: TableSchema, thin: bool = False) -> pa.Schema:
    """The Arrow schema of a data file, including field ids, before INT96 is applied."""
    keys = [] if thin else schema.key_fields()
    arrow = schema.arrow_schema()
    return pa.schema(
        [
            *(
                _with_id(pa.field(f.name, f.type.to_arrow(), nullable=f.type.nullable), f.id)
                for f in keys
            ),
            *(_SYSTEM_FIELDS if schema.trimmed_primary_keys else ()),
            *(
                _with_id(arrow.field(f.name).with_type(_identified(f.type, f.id, 1)), f.id)
                for f in schema.fields
            ),
        ]
    )


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": str(field_id).encode()})


_SYSTEM_FIELDS = (
    _with_id(pa.field(SEQUENCE_NUMBER, pa.int64(), nullable=False), SEQUENCE_FIELD_ID),
    _with_id(pa.field(VALUE_KIND, pa.int8(), nullable=False), VALUE_KIND_FIELD_ID),
)


def _identified(data_type: DataType, field_id: int, depth: int) -> pa.DataType:
    """The Arrow type with field ids on nested nodes."""
    # Rules of the format: ids of nested nodes are computed from their column's id, far above those
    # of columns. Keys of maps count down from the number from which other nodes count up.
    node = 1024 * field_id + depth
    if isinstance(data_type, ArrayType):
        element = pa.field(
            "element",
            _identified(data_type.element, field_id, depth + 1),
            nullable=data_type.element.nullable,
        )
        return pa.list_(_with_id(element, 536_870_911 + node))
    if isinstance(data_type, MapType | MultisetType):
        arrow = data_type.to_arrow()
        key, value = (
            (data_type.key, data_type.value)
            if isinstance(data_type, MapType)
            else (data_type.element, None)
        )
        key_field = pa.field("key", _identified(key, field_id, depth + 1), nullable=False)
        value_type = arrow.item_type if value is None else _identified(value, field_id, depth + 1)
        value_field = pa.field("value", value_type, nullable=arrow.item_field.nullable)
        return pa.map_(
            _with_id(key_field, 536_870_911 - node), _with_id(value_field, 536_870_911 + node)
        )
    if isinstance(data_type, RowType):
        # Members are optional even if they are NOT NULL: below a NULL row, they have no value.
        return pa.struct(
            [
                _with_id(pa.field(f.name, _identified(f.type, f.id, 1)), f.id)
                for f in data_type.fields
            ]
        )
    return data_type.to_arrow()


# -- the bloom filters of a data file --------------------------------------------------------------


@dataclass(frozen=True)
class ColumnFilter:
    """How to size a column's filter: for `items` values, by default the rows of the file."""

    false_positives: float = 0.1
    items: int | None = None


@dataclass(frozen=True)
class PlacedIndex:
    """The index of one data file, if it has one: in the manifest, or in a separate file."""

    embedded: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The file by its path."""

    @property
    def members(self) -> dict[str, Any]:
        """The members of the manifest entry for it."""
        names = tuple(path.rsplit("/", 1)[-1] for path in self.files)
        return {"embedded_file_index": self.embedded, "extra_files": names}


@dataclass(frozen=True)
class FileFilters:
    """Which columns of data files get a filter, and up to which size it goes into manifests."""

    columns: Mapping[str, ColumnFilter] = field(default_factory=dict)
    in_manifest_bytes_max: int = 0

    def of_file(self, rows: pa.Table, schema: TableSchema, path: str) -> PlacedIndex:
        """The index of a file with these rows.

        Columns for which the format has no filters get none.
        """
        indexes = self.indexes(rows, schema)
        return self.placed(indexes, index_name(path)) if indexes else PlacedIndex()

    def indexes(self, rows: pa.Table, schema: TableSchema) -> dict[str, dict[str, bytes]]:
        """The filters of rows, by column."""
        found = {}
        for name, settings in self.columns.items():
            column = schema.by_name.get(name)
            if column is None or not has_hash(column.type):
                continue
            count = max(1, rows.num_rows)
            items = min(count, settings.items or count)
            hashes = value_hashes(rows.column(name), column.type)
            found[name] = {BLOOM_FILTER: bloom_filter(hashes, items, settings.false_positives)}
        return found

    def placed(self, indexes: ColumnIndexes, path: str) -> PlacedIndex:
        """The indexes, placed by their size: in the manifest, or in a file with that path."""
        data = encode_file_index(indexes)
        if len(data) <= self.in_manifest_bytes_max:
            return PlacedIndex(embedded=data)
        return PlacedIndex(files={path: data})
