"""Which files may contain the values that a condition pins, according to their bloom filters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt

from keytide.base.process import side_by_side
from keytide.errors import DataError
from keytide.format.cache import FILES
from keytide.format.entry import ManifestEntry
from keytide.format.file_index import (
    BLOOM_FILTER,
    ColumnIndexes,
    decode_file_index,
    has_hash,
    index_name_among,
    may_hold,
    value_hashes,
)
from keytide.predicate.predicate import Predicate, columns_of, equal_values
from keytide.predicate.values.literals import spellings
from keytide.snapshot.state import TableView
from keytide.store import Store
from keytide.types import Field

__all__ = ["matching_filters", "stored_indexes"]

# How many index files are read at a time. Each has some hundred kilobytes for a million rows.
_FILES_TOGETHER = 32


def matching_filters(
    files: Sequence[ManifestEntry], view: TableView, terms: Sequence[Predicate]
) -> list[bool]:
    """Whether each file may contain rows that match all terms, according to its filters.

    Reads index files. Raises `DataError`, which names the file, if one is missing or damaged.
    """
    kept = [True] * len(files)
    reads = view.options.reads_file_indexes
    indexed = [i for i, entry in enumerate(files) if reads and _has_index(entry)]
    pinned = list(_pinned(view, terms)) if indexed else []
    if not pinned:
        return kept
    for start in range(0, len(indexed), _FILES_TOGETHER):
        places = indexed[start : start + _FILES_TOGETHER]
        found = _indexes(view, [files[i] for i in places])
        for i, indexes in zip(places, found, strict=True):
            kept[i] = all(_may_hold(value, files[i], indexes, view) for value in pinned)
    return kept


@dataclass(frozen=True)
class _Pinned:
    """A column and the hashes of the only values that it can have."""

    field: Field
    hashes: npt.NDArray[Any]


def _pinned(view: TableView, terms: Sequence[Predicate]) -> Iterator[_Pinned]:
    names = {name for term in terms for name in columns_of(term)}
    for field in view.schema.select([name for name in view.schema.names if name in names]):
        values = equal_values(terms, field.name) if has_hash(field.type) else None
        if values is None or None in values:  # filters do not contain NULL
            continue
        spelt = spellings(values, field)
        if spelt is not None:
            yield _Pinned(field, value_hashes(spelt, field.type))


def _may_hold(
    pinned: _Pinned, entry: ManifestEntry, indexes: ColumnIndexes, view: TableView
) -> bool:
    schema = view.schemas[entry.file.schema_id]
    old = next((f for f in schema.fields if f.id == pinned.field.id), None)
    # A value of another type has another hash.
    if old is None or old.type.with_nullable(True) != pinned.field.type.with_nullable(True):
        return True
    filter_bytes = indexes.get(old.name, {}).get(BLOOM_FILTER)
    try:
        return filter_bytes is None or may_hold(filter_bytes, pinned.hashes)
    except ValueError as error:
        raise DataError(
            f"table {view.name}: the index of data file {entry.file.file_name} is damaged: {error}"
        ) from error


def stored_indexes(view: TableView, entry: ManifestEntry) -> ColumnIndexes:
    """The indexes of a file, by column. Raises the same errors as `matching_filters`."""
    return _indexes(view, [entry])[0] if _has_index(entry) else {}


# -- where indexes are -----------------------------------------------------------------------------


def _has_index(entry: ManifestEntry) -> bool:
    file = entry.file
    return file.embedded_file_index is not None or index_name_among(file.extra_files) is not None


def _indexes(view: TableView, files: Sequence[ManifestEntry]) -> list[ColumnIndexes]:
    found = [_at_hand(view, entry) for entry in files]
    absent = [i for i, indexes in enumerate(found) if indexes is None]
    read = side_by_side([partial(_read, view, files[i]) for i in absent], _FILES_TOGETHER)
    for i, indexes in zip(absent, read, strict=True):
        found[i] = indexes
    return [indexes for indexes in found if indexes is not None]


def _at_hand(view: TableView, entry: ManifestEntry) -> ColumnIndexes | None:
    embedded = entry.file.embedded_file_index
    if embedded is not None:
        return decode_file_index(embedded, f"of {entry.file.file_name}")
    store, path = _index_file(view, entry)
    found: ColumnIndexes | None = FILES.find(store.uri_of(path))
    return found


def _read(view: TableView, entry: ManifestEntry) -> ColumnIndexes:
    store, path = _index_file(view, entry)
    uri, data = store.uri_of(path), store.read(path)
    found = decode_file_index(data, uri)
    FILES.keep(uri, found, len(data), view.options.lookup_cache_bytes_max)
    return found


def _index_file(view: TableView, entry: ManifestEntry) -> tuple[Store, str]:
    store, path = view.data_file(entry)
    name = index_name_among(entry.file.extra_files)
    assert name is not None
    return store, f"{path.removesuffix(entry.file.file_name)}{name}"
