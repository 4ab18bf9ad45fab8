"""Which rows of a bucket's files are dead: what its deletion vectors say, and how that changes.

All vectors of a bucket lie in one index file; other engines may have several, of append tables.
Files are never changed, so one more dead row means a new index file with all vectors of the bucket,
in the place of those before.
"""

from __future__ import annotations

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
    stored_vectors,
    write_vectors,
)
from keytide.format.index_manifest import DELETION_VECTORS, IndexFile
from keytide.store import Store
from keytide.table.state.bucket_index import EncodedIndex
from keytide.table.state.live_files import BucketId

__all__ = ["DeadRows", "load_dead_rows", "vector_file_path", "vector_files_by_bucket"]

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DeadRows:
    """The dead rows of one bucket, by data file, as a commit is to have them. Pickles.

    `stored` are the index files with which the work began, none where the bucket had none: a commit
    on top of others would bring rows back to life.
    """

    index_type: ClassVar[str] = DELETION_VECTORS

    based_on: ClassVar[None] = None  # `is_outdated` tells more

    stored: tuple[IndexFile, ...] = ()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    has_changed: bool = False
    """Whether the vectors are not those in `stored`."""
    went_by: Mapping[str, Positions] | None = field(default=None, compare=False)
    """The dead rows, as the work found them, of the files that it is about; None: of all files.
    What becomes of rows of other files meanwhile is no matter."""

    def of(self, file_name: str) -> Positions:
        """The positions of the dead rows of a file, ascending."""
        vector = self.vectors.get(file_name)
        return _NONE if vector is None else np.asarray(vector.to_array()).astype(np.int64)

    def count(self, file_name: str) -> int:
        """How many rows of a file are dead."""
        return len(self.vectors.get(file_name, ()))

    def marking(self, dead: Mapping[str, Positions], *, wide: bool) -> DeadRows:
        """With more dead rows of some files. All vectors have 64 bits where they are to be `wide`.

        Readers expect one form in all files of a table.
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
        """For work that is about some files, whose dead rows are still as it found them."""
        return replace(self, went_by={name: self.of(name) for name in file_names})

    def is_outdated(self, present: DeadRows) -> bool:
        """Whether the work went by what is not so any more."""
        if self.stored == present.stored:
            return False
        if self.went_by is None:
            return True
        return any(not np.array_equal(present.of(n), found) for n, found in self.went_by.items())

    def onto(self, present: DeadRows) -> DeadRows:
        """The same on top of what others have made of other files. REQUIRES: not outdated."""
        if self.went_by is None or self.stored == present.stored:
            return self
        mine = {name: vector for name, vector in self.vectors.items() if name in self.went_by}
        left = {name: v for name, v in present.vectors.items() if name not in self.went_by}
        if mine:
            form = type(next(iter(mine.values())))
            left = {name: form(vector) for name, vector in left.items()}
        return replace(self, stored=present.stored, vectors={**left, **mine})

    def joined(self, later: Sequence[DeadRows]) -> DeadRows:
        """See `BucketIndex`: the last counts, for each of them went by all vectors before."""
        return [self, *later][-1]

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex | None:
        """See `BucketIndex`: a bucket in which no row is dead any more has no vectors."""
        if not self.vectors:
            return None
        data, ranges = write_vectors(self.vectors)
        # They are copied, for the work may go on to mark more rows.
        vectors = {name: vector.copy() for name, vector in self.vectors.items()}
        remember = partial(_remember, vectors, ranges)
        return EncodedIndex(data, len(ranges), ranges, remember=remember)

    def without(self, gone: Collection[str]) -> DeadRows:
        """Without what is said of some files."""
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
    # Of arrays of its own width a bitmap is made without an object for each number.
    code, width = ("Q", np.uint64) if form is BitMap64 else ("I", np.uint32)
    # What is beyond it stays beyond what can be stored, and is refused there.
    fitting = np.minimum(positions, np.iinfo(width).max, dtype=np.uint64, casting="unsafe")
    return form(array(code, fitting.astype(width).tobytes()))


def vector_files_by_bucket(files: Iterable[IndexFile]) -> dict[BucketId, tuple[IndexFile, ...]]:
    """Those among some index files that mark rows as dead, by bucket."""
    found: dict[BucketId, tuple[IndexFile, ...]] = {}
    for file in files:
        if file.index_type == DELETION_VECTORS:
            bucket = (file.partition, file.bucket)
            found[bucket] = (*found.get(bucket, ()), file)
    return found


def vector_file_path(file: IndexFile, table: str) -> str:
    """Where an index file lies. Raises `UnsupportedError` for one outside of the table."""
    if file.external_path is not None:
        raise UnsupportedError(
            f"table {table}: index file {file.external_path} lies outside of the table, "
            f"which this release does not read"
        )
    return paths.index_path(file.file_name)


def load_dead_rows(store: Store, files: tuple[IndexFile, ...], table: str) -> DeadRows:
    """What the index files of a bucket say; nothing where there are none.

    Raises `DataError` for a file that is missing or torn, and as `vector_file_path`.
    """
    vectors: dict[str, Vector] = {}
    for file in files:
        path = vector_file_path(file, table)
        vectors |= stored_vectors(store, path, file.ranges or ())
    return DeadRows(files, vectors)
