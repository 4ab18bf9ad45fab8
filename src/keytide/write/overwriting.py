"""Determines which partitions an overwrite replaces, before any row is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keytide.errors import UnsupportedError
from keytide.options import keys
from keytide.snapshot.view import TableView
from keytide.write.partition_spec import PartitionSpec

__all__ = ["partition_to_replace"]


def partition_to_replace(
    view: TableView, partition: Mapping[str, Any] | None
) -> PartitionSpec | None:
    """The named partition, or None if the rows or the whole table determine what is replaced.

    Raises `InvalidError` for an invalid partition, and `UnsupportedError` if keys of other
    partitions would have to leave them.
    """
    spec = None if partition is None else PartitionSpec.parse(partition, view.schema, view.name)
    if view.moves_keys and (spec is not None or view.options.dynamic_partition_overwrite):
        raise UnsupportedError(
            f"table {view.name}: its primary key does not contain the partition columns, so keys "
            "of the new rows can exist in other partitions. Set "
            f"'{keys.DYNAMIC_PARTITION_OVERWRITE}' to 'false' to replace the whole table, or "
            "delete rows and then write"
        )
    return spec
