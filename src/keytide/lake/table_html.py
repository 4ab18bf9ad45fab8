"""The notebook view of a table: its columns, its latest snapshots, its largest buckets."""

from __future__ import annotations

from collections.abc import Iterator

from keytide.base.text import counted
from keytide.format.schema import TableSchema
from keytide.maintenance.upkeep.layout import Glance, Layout, Moment, Timeline
from keytide.show.chart import timeline_picture
from keytide.show.layout import (
    Bucket,
    Run,
    bucket_picture,
    buckets_table,
    levels_legend,
    timeline_legend,
)
from keytide.show.svg import (
    NARROW,
    Markup,
    details,
    element,
    named,
    names,
    notebook,
    paragraph,
    problem,
    rows_table,
)
from keytide.show.tables import columns_table
from keytide.show.text import shortened, size_text

__all__ = ["table_html"]

_URI_MAX = 300


def table_html(title: str, uri: str, glance: Glance) -> str:
    """The HTML of a table, including errors for parts that could not be read."""
    return notebook(
        paragraph(
            element("strong", named(title)), " ", element("code", shortened(uri, _URI_MAX)),
            class_="title",
        ),
        *map(problem, glance.problems),
        *([] if glance.schema is None else [_columns(glance.schema)]),
        *([] if glance.timeline is None else _timeline(glance.timeline)),
        *([] if glance.layout is None else _layout(glance.layout)),
    )  # fmt: skip


def _columns(schema: TableSchema) -> Markup:
    roles = {
        column: ", ".join(
            role
            for role, columns in (
                ("primary key", schema.primary_keys),
                ("partition", schema.partition_keys),
            )
            if column in columns
        )
        for column in schema.names
    }
    columns = [(f.name, f.type.sql(), roles[f.name]) for f in schema.fields]
    return columns_table(("Column", "Type", "Role"), columns)


def _timeline(timeline: Timeline) -> Iterator[Markup]:
    if not timeline.moments:
        yield paragraph("Nobody has written to this table yet.", class_="muted")
        return
    yield element("h4", f"Latest {counted(len(timeline.moments), 'snapshot')}")
    yield timeline_picture(timeline.moments, NARROW)
    yield timeline_legend()
    head = ("Snapshot", "Time", "Operation", "Written", "Deleted", "Stored", "Tags")
    table = rows_table("Snapshots", head, map(_moment, timeline.moments), ("Snapshot", *head[3:6]))
    yield details("The same as a table", table)


def _moment(moment: Moment) -> tuple[str, ...]:
    entry = moment.entry
    counts = (entry.rows_written, entry.rows_deleted, entry.rows_stored)
    return (
        str(entry.snapshot_id),
        f"{entry.time:%Y-%m-%d %H:%M:%S}Z",
        entry.operation,
        *(f"{count:,}" for count in counts),
        names(moment.tags),
    )


def _layout(layout: Layout) -> Iterator[Markup]:
    if layout.bucket is None:
        return
    title = f"{counted(layout.count, 'bucket')}, the largest first"
    yield element("h4", title if layout.count > 1 else "One bucket")
    yield buckets_table(layout.lines, layout.count)
    if layout.why_not is not None:
        yield paragraph(layout.why_not, class_="muted")
    yield from _bucket(layout.bucket)


def _bucket(bucket: Bucket) -> Iterator[Markup]:
    runs = counted(len(bucket.runs) + bucket.runs_left_out, "sorted run")
    yield element("h4", f"{runs} of ", named(bucket.line.name))
    yield bucket_picture(bucket, NARROW)
    yield levels_legend()
    if bucket.runs_left_out:
        note = f"{counted(bucket.runs_left_out, 'older run')} not shown"
        yield paragraph(note, class_="muted")
    head = ("Level", "Files", "Rows", "Dead rows", "Size", "Compacted next")
    rows = [_run(run, bucket) for run in bucket.runs]
    yield details("The same as a table", rows_table("Sorted runs", head, rows, head[:5]))


def _run(run: Run, bucket: Bucket) -> tuple[str, ...]:
    counts = (run.level, run.files, run.rows, run.dead)
    due = "" if run.pick is None else f"to level {bucket.picks[run.pick]}"
    return *(f"{count:,}" for count in counts), size_text(run.size), due
