"""What a scan reads of each bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from keytide.read.sections import BucketPlan
from keytide.show.buckets import ReadBucket
from keytide.snapshot.view import TableView

__all__ = ["read_buckets"]


def read_buckets(plans: Sequence[BucketPlan], view: TableView, most: int) -> tuple[ReadBucket, ...]:
    """The buckets of which most bytes are read, as many as `most`, in that order."""
    sizes = [sum(file.meta.file_size for file in plan.files) for plan in plans]
    largest = sorted(range(len(plans)), key=lambda place: -sizes[place])[:most]
    return tuple(_bucket(plans[place], view) for place in largest)


def _bucket(plan: BucketPlan, view: TableView) -> ReadBucket:
    files = [file.meta for file in plan.files]
    levels: Counter[int] = Counter()
    for file in files:
        levels[file.level] += file.file_size
    return ReadBucket(
        view.bucket_directory(plan.partition, plan.bucket),
        len(files),
        sum(len(section.files) for section in plan.sections if section.needs_merge),
        sum(file.row_count for file in files),
        sum(file.file_size for file in files),
        tuple(sorted(levels.items())),
    )
