"""Lanes: parts of a table whose changes are independent, because no key has been in two of them.

The changes of a key keep their order if the tasks of a lane run one after the other. Tasks of two
lanes can run in parallel, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from keytide.format.schema import TableSchema

__all__ = ["Lane", "lanes"]

Lane: TypeAlias = "tuple[bytes | int, ...]"
"""A bucket, a partition, or the whole table."""


def lanes(
    schema: TableSchema,
    counts: Mapping[bytes, Collection[int]],
    *,
    keeps_places: bool = False,
) -> Callable[[bytes, int], Lane]:
    """The lane of each bucket. `counts` are the numbers of buckets that each partition had.

    `keeps_places` says that no key has left its bucket although its hash did not determine it.
    """
    if schema.is_cross_partition:
        return lambda partition, bucket: ()

    def lane(partition: bytes, bucket: int) -> Lane:
        found = set(counts.get(partition, ()))
        stays = len(found) == 1 and (keeps_places or min(found) > 0)
        return (partition, bucket) if stays else (partition,)

    return lane
