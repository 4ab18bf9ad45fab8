"""Images: the rows that a snapshot shows, in key order, with the columns of another schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from keytide.base.lazily import cached_property
from keytide.format.data_file import VALUE_KIND
from keytide.format.data_file.evolved import evolved_column
from keytide.merge.windows import Batch
from keytide.predicate.predicate import Predicate
from keytide.read.found import Found
from keytide.read.lifetime import Lifetime
from keytide.read.merged_versions import MergedVersions
from keytide.read.sections import BucketPlan, PlannedFile
from keytide.read.visible_rows import Rows
from keytide.snapshot.view import TableView

__all__ = ["Images", "ImagesTask"]


@dataclass(frozen=True)
class Images:
    """Rows of some buckets, merged with `view` and shown with the columns of `target`.

    Columns are matched by id. Columns that `view` lacks are NULL, or the value that `target` shows
    for NULL. The `condition` is about the key. Picklable.
    """

    view: TableView
    target: TableView
    buckets: tuple[BucketPlan, ...]
    condition: Predicate | None = None
    lifetime: Lifetime | None = None
    """The maximum age of the rows that are shown."""

    @property
    def rows(self) -> int:
        """The maximum number of versions to read."""
        return sum(file.meta.row_count for bucket in self.buckets for file in bucket.files)

    def runs(
        self, memory_bytes: int, keys: pl.DataFrame | None = None, found: Found | None = None
    ) -> list[Iterator[Batch]]:
        """The rows as runs with one row per key. The runs have no key in common.

        With `keys`, only these keys, for which files have the versions in `found`. Otherwise all.
        The runs together fit in about `memory_bytes`.
        """
        chains = [chain for bucket in self.buckets for chain in self._chains(bucket)]
        share = memory_bytes // max(1, len(chains))
        return [self._run(chain, share, keys, found) for chain in chains]

    def _chains(self, bucket: BucketPlan) -> list[BucketPlan]:
        """The bucket in parts whose sections were split by key."""
        if self.view.options.merges_on_read:
            return [bucket]
        return [BucketPlan(bucket.partition, bucket.bucket, (each,)) for each in bucket.sections]

    def _run(
        self,
        chain: BucketPlan,
        memory_bytes: int,
        keys: pl.DataFrame | None,
        found: Found | None,
    ) -> Iterator[Batch]:
        columns = (*self._stored, VALUE_KIND)
        versions = MergedVersions(
            self.view, columns, self.condition, tells_kinds=False, found=found
        )
        shown = Rows(self.target, self.target.schema.names)
        for frame in versions.in_order(chain, memory_bytes, keys):
            rows = shown.shown(self._mapped(frame))
            young = rows if self.lifetime is None else rows.filter(~self.lifetime.has_expired)
            yield Batch(young)

    @cached_property
    def _stored(self) -> tuple[str, ...]:
        """The columns of `view` that `target` has too."""
        wanted = {field.id for field in self.target.schema.fields}
        return tuple(field.name for field in self.view.schema.fields if field.id in wanted)

    def _mapped(self, versions: pl.DataFrame) -> pl.DataFrame:
        if self.view.schema.fields == self.target.schema.fields:
            return versions
        was = {field.id: field for field in self.view.schema.fields}
        columns = [
            evolved_column(field, was.get(field.id), versions.schema)
            for field in self.target.schema.fields
        ]
        # Not `select` alone: a frame of only constants would have one row.
        return versions.with_columns(columns).select(*self.target.schema.names, VALUE_KIND)


@dataclass(frozen=True)
class ImagesTask:
    """All rows of some images, to be compared with rows in no particular order. Picklable."""

    images: Images

    @property
    def files(self) -> tuple[PlannedFile, ...]:
        """What is read."""
        return tuple(file for bucket in self.images.buckets for file in bucket.files)

    @property
    def rows(self) -> int:
        """The maximum number of rows."""
        return self.images.rows

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, with the columns that the images are shown with."""
        for run in self.images.runs(memory_bytes):
            yield from (batch.rows for batch in run)
