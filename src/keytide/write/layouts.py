"""Chooses the layout of a table."""

from __future__ import annotations

from keytide.errors import UnsupportedError
from keytide.snapshot.state import TableState
from keytide.write.layout import DynamicLayout, FixedLayout, Layout, PostponedLayout
from keytide.write.moving_keys import MovingLayout

__all__ = ["layout_of"]


def layout_of(state: TableState) -> Layout:
    """The layout for writing rows on top of a state.

    Raises `UnsupportedError` for a table with dynamic buckets whose index is incomplete.
    """
    view, partition_buckets = state.view, state.live.partition_buckets
    if view.postpones_buckets:
        return PostponedLayout(view.options, partition_buckets)
    if not view.has_dynamic_buckets:
        return FixedLayout(view.options, partition_buckets)
    layout = DynamicLayout(view.options, partition_buckets, state.hash_files)
    if view.moves_keys:
        return MovingLayout(view.merging, state.live.entries, layout, state.vector_files)
    _refuse_unindexed(state)
    return layout


def _refuse_unindexed(state: TableState) -> None:
    for (partition, bucket), files in state.live.buckets.items():
        if not files.is_empty and bucket not in state.hash_files.get(partition, {}):
            raise UnsupportedError(
                f"table {state.view.name}: bucket {bucket} has files but no index of its keys, "
                "because an engine without this index wrote them, so Keytide does not know where "
                "existing keys are; overwrite the table with its own rows, which creates the "
                "index"
            )
