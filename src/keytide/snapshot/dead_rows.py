"""The dead rows of a bucket's files, as recorded in its deletion vectors, and changes to them.

All vectors of a bucket are in one index file. In append tables, other engines may write several.
Files are never changed. So one more dead row means a new index file with all vectors of the bucket,
which replaces the previous one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from keytide.errors import UnsupportedError
from keytide.format import paths
from keytide.format.deletion_vector import (
    Vector,
    VectorRange,
    keep_vectors,
    read_vectors,
    stored_vectors,
    write_vectors,
)
from keytide.format.index_manifest import DELETION_VECTORS, IndexFile
from keytide.snapshot.bucket_index import EncodedIndex
from keytide.snapshot.live_files import BucketId
from keytide.store import Store

__all__ = [
    "DeadRows",
    "held_vectors",
    "load_dead_rows",
    "vector_file_path",
    "vector_files_by_bucket",
]

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DeadRows:
    """The dead rows of one bucket, by data file, as a commit must store them. Picklable.

    `stored` are the index files at the start of the work, empty if the bucket had none. A commit on
    top of other index files would bring rows back to life.
    """

    index_type: ClassVar[str] = DELETION_VECTORS

    based_on: ClassVar[None] = None  # `is_outdated` is more precise

    stored: tuple[IndexFile, ...] = ()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    has_changed: bool = False
    """Whether the vectors differ from those in `stored`."""
    went_by: Mapping[str, Positions] | None = field(default=None, compare=False)
    """The dead rows at the start of the work, of the files that the work depends on.

    None: of all files. Changes to rows of other files in the meantime do not matter.
    """

    def of(self, file_name: str) -> Positions:
        """The positions of the dead rows of a file, ascending."""
        vector = self.vectors.get(file_name)
        return _NONE if vector is None else np.asarray(vector.to_array()).astype(np.int64)

    def count(self, file_name: str) -> int:
        """The number of dead rows in a file."""
        return len(self.vectors.get(file_name, ()))

    def marking(self, dead: Mapping[str, Positions], *, wide: bool) -> DeadRows:
        """The same with more dead rows in some files. With `wide`, all vectors have 64 bits.

        Readers expect the same form in all files of a table.
        """
        more = {name: positions for name, positions in dead.items() if len(positions)}
        if not more:
            return self
        form = BitMap64 if wide else BitMap
        vectors = {name: form(vector) for name, vector in self.vectors.items()}
        for name, positions in more.items():
            vectors.setdefault(name, form()).update(_bitmap(form, positions))
        return replace(self, vectors=vectors, has_changed=True)

    def about(self, file_names: Iterable[str]) -> DeadRows:
        """The same for work that depends only on some files, whose dead rows have not changed
        yet.
        """
        return replace(self, went_by={name: self.of(name) for name in file_names})

    def is_outdated(self, present: DeadRows) -> bool:
        """Whether the work was based on dead rows that have changed since."""
        if self.stored == present.stored:
            return False
        if self.went_by is None:
            return True
        return any(not np.array_equal(present.of(n), found) for n, found in self.went_by.items())

    def onto(self, present: DeadRows) -> DeadRows:
        """The same combined with changes that others made to other files.

        REQUIRES: not outdated.
        """
        if self.went_by is None or self.stored == present.stored:
            return self
        mine = {name: vector for name, vector in self.vectors.items() if name in self.went_by}
        left = {name: v for name, v in present.vectors.items() if name not in self.went_by}
        if mine:
            form = type(next(iter(mine.values())))
            left = {name: form(vector) for name, vector in left.items()}
        return replace(self, stored=present.stored, vectors={**left, **mine})

    def joined(self, later: Sequence[DeadRows]) -> DeadRows:
        """See `BucketIndex`: the last one wins, because each includes all vectors before it."""
        return [self, *later][-1]

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex | None:
        """See `BucketIndex`: a bucket without dead rows has no vectors."""
        if not self.vectors:
            return None
        data, ranges = write_vectors(self.vectors)
        # They are copied because the work may continue to mark rows.
        vectors = {name: vector.copy() for name, vector in self.vectors.items()}
        remember = partial(_remember, vectors, ranges)
        return EncodedIndex(data, len(ranges), ranges, remember=remember)

    def without(self, gone: Collection[str]) -> DeadRows:
        """The same without the given files."""
        left = {name: vector for name, vector in self.vectors.items() if name not in gone}
        return (
            self
            if len(left) == len(self.vectors)
            else replace(self, vectors=left, has_changed=True)
        )


def _remember(
    vectors: dict[str, Vector], ranges: Sequence[VectorRange], store: Store, path: str, _: int
) -> None:
    keep_vectors(store, path, ranges, vectors)


_NONE: Positions = np.empty(0, np.int64)


def _bitmap(form: type[Vector], positions: Positions) -> Vector:
    # From an array of its own width, a bitmap is created without an object for each number.
    code, width = ("Q", np.uint64) if form is BitMap64 else ("I", np.uint32)
    # Larger positions stay too large to be stored, and are refused there.
    fitting = np.minimum(positions, np.iinfo(width).max, dtype=np.uint64, casting="unsafe")
    return form(array(code, fitting.astype(width).tobytes()))


def vector_files_by_bucket(files: Iterable[IndexFile]) -> dict[BucketId, tuple[IndexFile, ...]]:
    """Those index files that mark rows as dead, by bucket."""
    found: dict[BucketId, tuple[IndexFile, ...]] = {}
    for file in files:
        if file.index_type == DELETION_VECTORS:
            bucket = (file.partition, file.bucket)
            found[bucket] = (*found.get(bucket, ()), file)
    return found


def vector_file_path(file: IndexFile, table: str) -> str:
    """The path of an index file. Raises `UnsupportedError` for a file outside the table."""
    if file.external_path is not None:
        raise UnsupportedError(
            f"table {table}: index file {file.external_path} is outside the table, which this "
            "release cannot read"
        )
    return paths.index_path(file.file_name)


def held_vectors(bucket: BucketId, dead: DeadRows) -> IndexFile:
    """The vectors of a bucket as an index file that no store has, for readers of a state."""
    data, ranges = write_vectors(dead.vectors)
    name = f"held-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
    return IndexFile(DELETION_VECTORS, *bucket, name, len(data), len(ranges), ranges, held=data)


def load_dead_rows(store: Store, files: tuple[IndexFile, ...], table: str) -> DeadRows:
    """Read the index files of a bucket. The result is empty if there are none.

    Raises `DataError` for a file that is missing or damaged, and the errors of `vector_file_path`.
    """
    vectors: dict[str, Vector] = {}
    for file in files:
        if file.held is not None:
            vectors |= read_vectors(file.held, file.ranges or (), file.file_name)
            continue
        path = vector_file_path(file, table)
        vectors |= stored_vectors(store, path, file.ranges or ())
    return DeadRows(files, vectors)
