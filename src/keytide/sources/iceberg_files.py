"""Data files of Iceberg tables, and the files that mark deleted rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from keytide.base.extras import library
from keytide.errors import DataError, InvalidError
from keytide.sources.iceberg_storage import IcebergStorage
from keytide.sources.parquet_part import ForeignPart
from keytide.sources.parquet_rows import (
    FIELD_ID,
    ForeignFile,
    MisfitError,
    StoredColumn,
    reading,
)
from keytide.store.base import Store
from keytide.store.open import open_store

__all__ = ["ByIds", "IcebergPart", "mapped_names"]


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
    columns: tuple[StoredColumn, ...] = field(repr=False)
    find: ByIds = field(repr=False)
    constants: Mapping[str, pa.Scalar] = field(repr=False)
    deletes: tuple[tuple[str, str], ...] = field(repr=False)
    plain: frozenset[str] = field(repr=False)

    def __str__(self) -> str:
        return self.path

    @property
    def stored(self) -> tuple[StoredColumn, ...]:
        """See `ForeignPart`."""
        return self.columns

    @property
    def has_dead_rows(self) -> bool:
        """See `ParquetPart`."""
        return bool(self.deletes)

    def dead_rows(self) -> npt.NDArray[np.int64]:
        """See `ParquetPart`. Reads the delete files."""
        found = []
        for path, kind in self.deletes:
            with reading(path), self._opened(path) as file:
                found.append(
                    _from_puffin(file.read(), self.path, path)
                    if kind == "puffin"
                    else _from_parquet(file, self.path)
                )
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

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


def _from_parquet(file: Any, path: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The positions for a data file in a position delete file."""
    found = [np.empty(0, np.int64)]
    for batch in pq.ParquetFile(file).iter_batches(columns=["file_path", "pos"]):
        mine = pc.equal(batch.column("file_path").cast(pa.string()), path)
        found.append(batch.column("pos").filter(mine).to_numpy(zero_copy_only=False))
    return np.concatenate(found)


def _from_puffin(data: bytes, path: str, uri: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The positions of a deletion vector: a length, a magic number, the bitmap, a checksum."""
    puffin = library("pyiceberg.table.puffin", "iceberg", uri).PuffinFile(data)
    found = [np.empty(0, np.int64)]
    for blob in puffin.footer.blobs:
        if blob.properties.get("referenced-data-file") == path:
            payload = data[blob.offset : blob.offset + blob.length]
            if zlib.crc32(payload[4:-4]) != int.from_bytes(payload[-4:], "big"):
                raise DataError(f"{uri}: the checksum of the deletion vector of {path} is wrong")
            bitmap = BitMap64.deserialize(payload[8:-4])
            found.append(np.fromiter(bitmap, np.int64, len(bitmap)))
    return np.concatenate(found)


def mapped_names(fields: Sequence[Any]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The names for ids in a name mapping, at any depth."""
    for mapped in fields:
        if mapped.field_id is not None:
            yield mapped.field_id, tuple(mapped.names)
        yield from mapped_names(mapped.fields)
