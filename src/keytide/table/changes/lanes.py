"""Lanes: parts of a table that changes may be told of apart, for no key has been in two of them.

What is told of one key keeps its order where the tasks of a lane are carried out one after the
other. Those of two lanes may run side by side, and come in any order.
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
    """The lane of each bucket, given the numbers of buckets that each partition had.

    `keeps_places` tells that no key has left its bucket although the hash of it did not choose it.
    """
    if schema.is_cross_partition:
        return lambda partition, bucket: ()

    def lane(partition: bytes, bucket: int) -> Lane:
        found = set(counts.get(partition, ()))
        stays = len(found) == 1 and (keeps_places or min(found) > 0)
        return (partition, bucket) if stays else (partition,)

    return lane
