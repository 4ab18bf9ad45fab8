"""A picture of a table: levels and buckets, files over time, and write amplification."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from keytide.base.process import library
from keytide.base.text import counted, utc
from keytide.maintenance.history.log import Step, growth_of
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.pinned import StoredTable

__all__ = ["picture_of"]

# More bars than this cannot be distinguished.
_BUCKETS_MAX = 40
_MEGABYTE = 1e6


def picture_of(table: StoredTable) -> Any:
    """A matplotlib figure with three parts.

    Raises `SetupError` without matplotlib, and `DataError` for corrupt metadata.
    """
    table = table.pinned()
    steps = list(growth_of(table))
    made_of = library("matplotlib.figure", "plot", "Table.plot")
    figure = made_of.Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplot_mosaic([["levels", "cost"], ["files", "files"]])
    figure.suptitle(table.name)
    _draw_levels(axes["levels"], table)
    _draw_cost(axes["cost"], steps)
    _draw_files(axes["files"], steps)
    return figure


def _draw_levels(axes: Any, table: StoredTable) -> None:
    """Draw a bar for each bucket, with a segment for each level."""
    sizes = _level_sizes(table)
    shown = sorted(sizes, key=lambda bucket: -sum(sizes[bucket].values()))[:_BUCKETS_MAX]
    bottoms = [0.0] * len(shown)
    for level in sorted({level for bucket in shown for level in sizes[bucket]}, reverse=True):
        heights = [sizes[bucket].get(level, 0) / _MEGABYTE for bucket in shown]
        axes.bar(range(len(shown)), heights, bottom=bottoms, label=f"level {level}")
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    of_all = f" of {len(sizes):,}" if len(sizes) > len(shown) else ""
    title = f"Levels of {counted(len(shown), 'bucket')}{of_all}"
    axes.set(title=title, ylabel="MB", xlabel="bucket, largest first")
    axes.set_xticks(range(len(shown)), [str(bucket) for _, bucket in shown])
    if shown:
        axes.legend()


def _level_sizes(table: StoredTable) -> dict[BucketId, dict[int, int]]:
    sizes: dict[BucketId, dict[int, int]] = {}
    for entry in table.newest_files().entries:
        levels = sizes.setdefault((entry.partition, entry.bucket), {})
        levels[entry.file.level] = levels.get(entry.file.level, 0) + entry.file.file_size
    return sizes


def _draw_files(axes: Any, steps: Sequence[Step]) -> None:
    """Draw the number of files and their total bytes for each snapshot."""
    times = [utc(step.snapshot.time_millis) for step in steps]
    axes.step(times, [step.files for step in steps], where="post", color="C0", marker=".")
    axes.set(title="Files over time", ylabel="files", xlabel="time of the snapshot, UTC")
    axes.set_ylim(bottom=0)
    beside = axes.twinx()
    beside.step(times, [step.bytes / _MEGABYTE for step in steps], where="post", color="C1")
    beside.set_ylabel("MB", color="C1")
    beside.set_ylim(bottom=0)


def _draw_cost(axes: Any, steps: Sequence[Step]) -> None:
    """Draw the write amplification: bytes written for each byte of input, cumulated over time."""
    written = itertools.accumulate(step.bytes_written for step in steps)
    appended = itertools.accumulate(step.bytes_appended for step in steps)
    points = [
        (step.snapshot.id, all_of_it / came_in)
        for step, all_of_it, came_in in zip(steps, written, appended, strict=True)
        if came_in
    ]
    axes.plot([number for number, _ in points], [ratio for _, ratio in points], marker=".")
    axes.set(
        title="Write amplification", ylabel="bytes written per byte appended", xlabel="snapshot"
    )
    axes.set_ylim(bottom=0)
