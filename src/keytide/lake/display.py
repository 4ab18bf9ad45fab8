"""The views of a table and its snapshots in a notebook, and a picture of a table.

The notebook view shows columns, the latest snapshots and the largest buckets. The picture shows
levels and buckets, files over time, and write amplification.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from keytide.base import record
from keytide.base.process import library
from keytide.base.text import counted, moment_text, utc
from keytide.format.snapshot import Snapshot
from keytide.maintenance.history import Step, growth_of
from keytide.maintenance.overviews import Layout, TableSummary, Timeline
from keytide.show.buckets import LEVELS, TIMELINE, bucket_picture, buckets_table, legend
from keytide.show.chart import timeline_picture
from keytide.show.elements import (
    NARROW,
    Markup,
    columns_table,
    details,
    element,
    named,
    names,
    notebook,
    paragraph,
    problem,
    rows_table,
    shortened,
    size_text,
)
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.stored_table import StoredTable

# -- the notebook view of a table ------------------------------------------------------------------


_URI_MAX = 300


def table_html(title: str, uri: str, glance: TableSummary) -> str:
    """The HTML of a table, including errors for parts that could not be read."""
    name, place = element("strong", named(title)), element("code", shortened(uri, _URI_MAX))
    parts = [paragraph(name, " ", place, class_="title"), *map(problem, glance.problems)]
    if glance.schema is not None:
        schema = glance.schema
        roles = {"primary key": schema.primary_keys, "partition": schema.partition_keys}
        columns = [
            (f.name, f.type.sql(), ", ".join(r for r, names in roles.items() if f.name in names))
            for f in schema.fields
        ]
        parts.append(columns_table(("Column", "Type", "Role"), columns))
    if glance.timeline is not None:
        parts += _timeline(glance.timeline)
    if glance.layout is not None:
        parts += _layout(glance.layout)
    return notebook(*parts)


def _timeline(timeline: Timeline) -> Iterator[Markup]:
    if not timeline.entries:
        yield paragraph("Nobody has written to this table yet.", class_="muted")
        return
    yield element("h4", f"Latest {counted(len(timeline.entries), 'snapshot')}")
    yield timeline_picture(timeline.entries, NARROW)
    yield legend(TIMELINE)
    head = ("Snapshot", "Time", "Operation", "Written", "Deleted", "Stored", "Tags")
    rows = []
    for moment in timeline.entries:
        entry = moment.entry
        counts = (entry.rows_written, entry.rows_deleted, entry.rows_stored)
        about = (str(entry.snapshot_id), f"{entry.time:%Y-%m-%d %H:%M:%S}Z", entry.operation)
        rows.append((*about, *(f"{count:,}" for count in counts), names(moment.tags)))
    table = rows_table("Snapshots", head, rows, ("Snapshot", *head[3:6]))
    yield details("The same as a table", table)


def _layout(layout: Layout) -> Iterator[Markup]:
    if layout.bucket is None:
        return
    title = f"{counted(layout.count, 'bucket')}, the largest first"
    yield element("h4", title if layout.count > 1 else "One bucket")
    yield buckets_table(layout.lines, layout.count)
    if layout.why_not is not None:
        yield paragraph(layout.why_not, class_="muted")

    bucket = layout.bucket
    runs = counted(len(bucket.runs) + bucket.runs_left_out, "sorted run")
    yield element("h4", f"{runs} of ", named(bucket.line.name))
    yield bucket_picture(bucket, NARROW)
    yield legend(LEVELS)
    if bucket.runs_left_out:
        note = f"{counted(bucket.runs_left_out, 'older run')} not shown"
        yield paragraph(note, class_="muted")
    head = ("Level", "Files", "Rows", "Dead rows", "Size", "Compacted next")
    rows = []
    for run in bucket.runs:
        counts = (run.level, run.files, run.rows, run.dead)
        due = "" if run.pick is None else f"to level {bucket.picks[run.pick]}"
        rows.append((*(f"{count:,}" for count in counts), size_text(run.size), due))
    yield details("The same as a table", rows_table("Sorted runs", head, rows, head[:5]))


# -- the picture of a table ------------------------------------------------------------------------


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
    sizes: dict[BucketId, dict[int, int]] = {}
    for entry in table.newest_files().entries:
        levels = sizes.setdefault((entry.partition, entry.bucket), {})
        levels[entry.file.level] = levels.get(entry.file.level, 0) + entry.file.file_size
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


# -- the list of snapshots -------------------------------------------------------------------------


class Snapshots(list[Snapshot]):
    """A list of snapshots, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        head = ("id", "time", "kind", "added versions", "stored versions", "user", "identifier")
        rows = (
            (
                each.id,
                moment_text(each.time_millis),
                each.commit_kind.value,
                f"{each.delta_record_count:,}",
                f"{each.total_record_count:,}",
                each.commit_user,
                each.commit_identifier,
            )
            for each in self
        )
        return record.table(head, rows)
