"""Overviews of a table: its summary, its buckets, and its timeline of snapshots.

An overview of the buckets shows their sorted runs, and what is compacted next. The timeline has one
page of ids at a time. The summary has the columns, the latest snapshots and the largest buckets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.text import counted, utc
from keytide.compaction.compact import Planner, why_not_compacted
from keytide.compaction.strategy import SortedRun, Unit, sorted_runs
from keytide.errors import KeytideError, NotFoundError
from keytide.format.binary_row import decode_rows
from keytide.format.manifest_entry import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.maintenance.branches import branches_of
from keytide.maintenance.history import HistoryEntry, entries_before
from keytide.maintenance.tags import tags_of
from keytide.options import keys
from keytide.show.buckets import Bucket, BucketLine, Part, Run
from keytide.show.elements import rows_of
from keytide.snapshot.live_files import BucketId, vector_files_by_bucket
from keytide.snapshot.state import TableState
from keytide.snapshot.stored_table import StoredTable

# -- buckets ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListLimits:
    """How many buckets are listed, and how many runs and parts of a run are shown of one."""

    buckets: int
    runs: int
    parts: int


PAGE = ListLimits(20, 40, 120)
GLANCE = ListLimits(8, 10, 16)
"""The limits of a page, and of the output of a notebook cell."""


@dataclass(frozen=True)
class Layout:
    """A page of buckets, largest first, and one of them in detail."""

    lines: tuple[BucketLine, ...]
    bucket: Bucket | None
    page: int
    pages: int
    count: int
    largest: int
    trigger: int
    why_not: str | None
    """Why nothing is compacted automatically, if that is the case."""


def layout_of(
    table: StoredTable, page: int = 1, number: int | None = None, room: ListLimits = PAGE
) -> Layout:
    """The buckets of the latest snapshot. Bucket `number`, or the first of the page, is in detail.

    Reads only metadata. Raises `NotFoundError` for a number that is too high, and `DataError` for
    damaged metadata.
    """
    seen = table.pinned()
    state = seen.newest_state(seen.schema)
    totals = _totals(state)
    pages = max(1, -(-totals.height // room.buckets))
    page = min(max(1, page), pages) if number is None else number // room.buckets + 1
    if number is not None and not 0 <= number < totals.height:
        raise NotFoundError(
            f"table {table.name} has {counted(totals.height, 'bucket')}, numbered from 0; there "
            f"is no bucket {number}"
        )
    first = (page - 1) * room.buckets
    shown = totals.slice(first, room.buckets)
    ids: list[BucketId] = list(zip(shown["_PARTITION"], shown["_BUCKET"], strict=True))

    # What the next write would compact in some buckets.
    if not state.view.kind.keeps_versions or why_not_compacted(state.view) is not None or not ids:
        due = {}
    else:
        planner = Planner(state.view, vector_files_by_bucket(state.vector_files))
        found: dict[BucketId, list[Unit]] = {}
        for unit in planner.due_units(state.live, set(ids)):
            found.setdefault(unit.bucket, []).append(unit)
        due = found
    lines = [
        _line(first + place, row, state, is_due=bucket in due)
        for place, (bucket, row) in enumerate(zip(ids, shown.to_dicts(), strict=True))
    ]
    chosen = 0 if number is None else number - first
    bucket = (
        _bucket(state, ids[chosen], lines[chosen], due.get(ids[chosen], []), room) if ids else None
    )
    return Layout(
        tuple(lines), bucket, page, pages, totals.height,
        int(totals["size"].max() or 0),  # type: ignore[arg-type]  # sizes are integers
        state.view.options.compaction_trigger_runs, _why_not(state),
    )  # fmt: skip


def _why_not(state: TableState) -> str | None:
    view = state.view
    if not view.kind.keeps_versions:
        return "Nothing is merged in this table: it has no primary key, or a key index."
    if view.options.write_only:
        return f"The table is '{keys.WRITE_ONLY}': writes do not compact it."
    return why_not_compacted(view)


def _totals(state: TableState) -> pl.DataFrame:
    columns = state.live.files.columns(
        "_PARTITION", "_BUCKET", "_LEVEL", "_FILE_SIZE", "_ROW_COUNT"
    )
    by_level = columns.group_by("_PARTITION", "_BUCKET", "_LEVEL").agg(
        pl.len().alias("files"), pl.col("_FILE_SIZE").sum(), pl.col("_ROW_COUNT").sum()
    )
    return (
        by_level.sort("_LEVEL")
        .group_by("_PARTITION", "_BUCKET", maintain_order=True)
        .agg(
            pl.col("files").sum(),
            pl.col("_ROW_COUNT").sum().alias("rows"),
            pl.col("_FILE_SIZE").sum().alias("size"),
            pl.col("_LEVEL").alias("levels"),
            pl.col("_FILE_SIZE").alias("sizes"),
        )
        .sort("size", "_PARTITION", "_BUCKET", descending=[True, False, False])
    )


def _line(number: int, row: Mapping[str, object], state: TableState, *, is_due: bool) -> BucketLine:
    levels, sizes = row["levels"], row["sizes"]
    assert isinstance(levels, list)
    assert isinstance(sizes, list)
    return BucketLine(
        number,
        state.view.bucket_directory(row["_PARTITION"], row["_BUCKET"]),  # type: ignore[arg-type]  # as the frame has them
        int(str(row["files"])),
        int(str(row["rows"])),
        int(str(row["size"])),
        tuple(zip(levels, sizes, strict=True)),
        is_due,
    )


def _bucket(
    state: TableState, bucket: BucketId, line: BucketLine, units: Sequence[Unit], room: ListLimits
) -> Bucket:
    runs = sorted_runs(state.live.files_in([bucket]))
    picked = {entry.identity: number for number, unit in enumerate(units) for entry in unit.files}
    shown = runs[: room.runs]
    files = [entry for run in shown for entry in run.files]
    bounds = _Keys.of(files, state)
    # How many rows of each file deletion vectors mark as dead, if their writer recorded it.
    vector_files = vector_files_by_bucket(state.vector_files).get(bucket, ())
    ranges = (each for file in vector_files for each in file.ranges or ())
    dead = {each.data_file_name: each.cardinality or 0 for each in ranges}
    return Bucket(
        line,
        tuple(_run(run, bounds, dead, picked.get(run.files[0].identity), room) for run in shown),
        len(runs) - len(shown),
        tuple(unit.output_level for unit in units),
        bounds.first,
        bounds.last,
    )


def _run(
    run: SortedRun, bounds: _Keys, dead: Mapping[str, int], pick: int | None, room: ListLimits
) -> Run:
    parts = []
    for entry in run.files:
        file, name = entry.file, entry.file.file_name
        start, end = bounds.places.get(name, (0.0, 1.0))
        deletes, keys_shown = file.delete_row_count or 0, bounds.texts.get(name)
        size, lost = file.file_size, dead.get(name, 0)
        parts.append(Part(name, file.row_count, lost, deletes, size, start, end, keys_shown))
    return Run(
        run.level,
        run.size,
        sum(part.rows for part in parts),
        sum(part.dead for part in parts),
        len(run.files),
        tuple(_together(parts, room.parts)),
        pick,
    )


def _together(parts: Sequence[Part], most: int) -> Iterator[Part]:
    """The parts or, where there are more than `most`, neighbours as one."""
    in_order = sorted(parts, key=lambda part: part.start)
    step = -(-len(in_order) // most)
    for begin in range(0, len(in_order), step):
        joined = in_order[begin : begin + step]
        first, last = joined[0], max(joined, key=lambda part: part.end)
        if len(joined) == 1:
            yield first
            continue
        yield Part(
            f"{counted(len(joined), 'file')} from {first.name}",
            sum(part.rows for part in joined),
            sum(part.dead for part in joined),
            sum(part.deletes for part in joined),
            sum(part.size for part in joined),
            first.start,
            last.end,
            None if first.keys is None or last.keys is None else (first.keys[0], last.keys[1]),
        )


@dataclass(frozen=True)
class _Keys:
    """Where the keys of files begin and end among all keys, in order but not to scale."""

    places: Mapping[str, tuple[float, float]]
    texts: Mapping[str, tuple[str, str]]
    first: str | None = None
    last: str | None = None

    @classmethod
    def of(cls, files: Sequence[ManifestEntry], state: TableState) -> _Keys:
        fields = state.view.schema.trimmed_primary_key_fields()
        if not fields or not files:
            return cls({}, {})
        bounds = [file.file.min_key for file in files] + [file.file.max_key for file in files]
        rows = pa.table(decode_rows(bounds, [f.type for f in fields]), [f.name for f in fields])
        texts = [", ".join(str(cell) for cell in row) for row in rows_of(rows)]

        # The rank of each bound among the distinct ones, starting at 0.
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        ordered = frame.unique().sort(frame.columns).with_row_index("_rank")
        ranked = frame.join(
            ordered, on=frame.columns, how="left", maintain_order="left", nulls_equal=True
        )
        ranks = ranked["_rank"].to_list()
        last, count = max(max(ranks), 1), len(files)
        names = [file.file.file_name for file in files]
        places = {n: (ranks[i] / last, ranks[count + i] / last) for i, n in enumerate(names)}
        shown = {n: (texts[i], texts[count + i]) for i, n in enumerate(names)}
        return cls(places, shown, texts[ranks.index(0)], texts[ranks.index(max(ranks))])


# -- timeline --------------------------------------------------------------------------------------


PAGE_SNAPSHOTS = 40
"""The number of snapshot ids on a page."""

_NAMES_MAX = 500


@dataclass(frozen=True)
class TimelineEntry:
    """A snapshot: what its commit did, and its tags and branches."""

    entry: HistoryEntry
    tags: tuple[str, ...]
    branches: tuple[str, ...]
    is_newest: bool


@dataclass(frozen=True)
class TagLine:
    """A tag. If it `is_alone`, the snapshot has expired and only the tag keeps it."""

    name: str
    snapshot_id: int
    time: datetime
    stored: int
    is_alone: bool


@dataclass(frozen=True)
class BranchLine:
    """A branch, with its oldest and its latest snapshot. None if it has none."""

    name: str
    first_id: int | None
    newest_id: int | None
    time: datetime


@dataclass(frozen=True)
class Timeline:
    """A page of snapshots, latest first.

    `before` is the id above the page. `older` is the same for the next page, None on the last one.
    `newer` is the same for the previous page, None on the first one. Of tags and branches beyond
    the first few hundred, only the number is given.
    """

    entries: tuple[TimelineEntry, ...]
    tags: tuple[TagLine, ...]
    branches: tuple[BranchLine, ...]
    more_tags: int
    oldest_id: int | None
    newest_id: int | None
    before: int
    older: int | None
    newer: int | None

    @property
    def is_newest_page(self) -> bool:
        """Whether new snapshots will appear on this page."""
        return self.newer is None


def timeline_of(
    table: StoredTable, before: int | None = None, count: int = PAGE_SNAPSHOTS
) -> Timeline:
    """The snapshots with `count` ids below `before`, by default the latest.

    Reads only these, with the manifests of their commits. Raises `DataError` for damaged metadata.
    """
    seen = table.pinned().metadata
    newest, oldest = seen.latest_snapshot_id(), seen.earliest_snapshot_id()
    above = (newest or 0) + 1
    before = above if before is None else min(max(before, (oldest or 0) + 1), above)
    entries = entries_before(seen, before, count)
    all_tags = tags_of(table.metadata)
    tags = tuple(
        TagLine(
            tag.name,
            tag.snapshot_id,
            utc(tag.snapshot.time_millis),
            tag.snapshot.total_record_count,
            oldest is None or tag.snapshot_id < oldest,
        )
        for tag in all_tags[-_NAMES_MAX:]
    )
    branches = tuple(
        BranchLine(
            each.name,
            None if each.first is None else each.first.id,
            None if each.newest is None else each.newest.id,
            each.create_time,
        )
        for each in branches_of(table.metadata)[:_NAMES_MAX]
    )
    last = before - count
    return Timeline(
        tuple(_moments(entries, tags, branches, newest)),
        tags,
        branches,
        len(all_tags) - len(tags),
        oldest,
        newest,
        before,
        last if oldest is not None and last > oldest else None,
        min(before + count, above) if before < above else None,
    )


def _moments(
    entries: Sequence[HistoryEntry],
    tags: Sequence[TagLine],
    branches: Sequence[BranchLine],
    newest: int | None,
) -> list[TimelineEntry]:
    named, begun = defaultdict[int, list[str]](list), defaultdict[int | None, list[str]](list)
    for tag in tags:
        named[tag.snapshot_id].append(tag.name)
    for branch in branches:
        begun[branch.first_id].append(branch.name)
    ids = [entry.snapshot_id for entry in entries]
    return [
        TimelineEntry(entry, tuple(named[number]), tuple(begun[number]), number == newest)
        for number, entry in zip(ids, entries, strict=True)
    ]


# -- summary ---------------------------------------------------------------------------------------


_SNAPSHOTS = 20

T = TypeVar("T")


@dataclass(frozen=True)
class TableSummary:
    """A table at one moment. A part is None if it could not be read; `problems` say why."""

    schema: TableSchema | None
    timeline: Timeline | None
    layout: Layout | None
    problems: tuple[Exception, ...]


def table_summary(table: StoredTable) -> TableSummary:
    """The table now. One request for its newest state; reads metadata only. Never raises for
    what is missing, damaged or out of reach.
    """
    problems: list[Exception] = []

    def tried(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (KeytideError, OSError) as error:
            if str(error) not in map(str, problems):
                problems.append(error)
            return None

    seen = tried(table.pinned)
    if seen is None:
        return TableSummary(None, None, None, tuple(problems))
    return TableSummary(
        tried(lambda: seen.schema),
        tried(lambda: timeline_of(seen, count=_SNAPSHOTS)),
        tried(lambda: layout_of(seen, room=GLANCE)),
        tuple(problems),
    )
