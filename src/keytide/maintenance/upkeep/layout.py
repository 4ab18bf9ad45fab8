"""How the rows of a table are stored: buckets, their sorted runs, and what is compacted next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.base.plural import counted
from keytide.compaction.picking import SortedRun, Unit, sorted_runs
from keytide.compaction.planning import Planner, why_not_compacted
from keytide.errors import NotFoundError
from keytide.format.binary_row import decode_rows
from keytide.format.manifest import ManifestEntry
from keytide.options import keys
from keytide.show.buckets import Bucket, BucketLine, Part, Run
from keytide.show.cells import rows_of
from keytide.snapshot.dead_rows import vector_files_by_bucket
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableState
from keytide.snapshot.stored import StoredTable

__all__ = ["GLANCE", "PAGE", "Layout", "Room", "layout_of"]


@dataclass(frozen=True)
class Room:
    """How many buckets are listed, and how many runs and parts of a run are shown of one."""

    buckets: int
    runs: int
    parts: int


PAGE = Room(20, 40, 120)
GLANCE = Room(8, 10, 16)
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
    table: StoredTable, page: int = 1, number: int | None = None, room: Room = PAGE
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
    due = _due(state, ids)
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


def _due(state: TableState, ids: Sequence[BucketId]) -> Mapping[BucketId, list[Unit]]:
    """What the next write would compact in some buckets."""
    if not state.view.kind.keeps_versions or why_not_compacted(state.view) is not None or not ids:
        return {}
    planner = Planner(state.view, vector_files_by_bucket(state.vector_files))
    found: dict[BucketId, list[Unit]] = {}
    for unit in planner.due(state.live, set(ids)):
        found.setdefault(unit.bucket, []).append(unit)
    return found


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
    state: TableState, bucket: BucketId, line: BucketLine, units: Sequence[Unit], room: Room
) -> Bucket:
    runs = sorted_runs(state.live.files_in([bucket]))
    picked = {entry.identity: number for number, unit in enumerate(units) for entry in unit.files}
    shown = runs[: room.runs]
    files = [entry for run in shown for entry in run.files]
    bounds = _Keys.of(files, state)
    dead = _dead(state, bucket)
    return Bucket(
        line,
        tuple(_run(run, bounds, dead, picked.get(run.files[0].identity), room) for run in shown),
        len(runs) - len(shown),
        tuple(unit.output_level for unit in units),
        bounds.first,
        bounds.last,
    )


def _dead(state: TableState, bucket: BucketId) -> Mapping[str, int]:
    """How many rows of each file deletion vectors mark as dead, if their writer recorded it."""
    files = vector_files_by_bucket(state.vector_files).get(bucket, ())
    ranges = (each for file in files for each in file.ranges or ())
    return {each.data_file_name: each.cardinality or 0 for each in ranges}


def _run(
    run: SortedRun, bounds: _Keys, dead: Mapping[str, int], pick: int | None, room: Room
) -> Run:
    parts = [_part(entry, bounds, dead) for entry in run.files]
    return Run(
        run.level,
        run.size,
        sum(entry.file.row_count for entry in run.files),
        sum(dead.get(entry.file.file_name, 0) for entry in run.files),
        len(run.files),
        tuple(_together(parts, room.parts)),
        pick,
    )


def _part(entry: ManifestEntry, bounds: _Keys, dead: Mapping[str, int]) -> Part:
    file = entry.file
    start, end = bounds.places.get(file.file_name, (0.0, 1.0))
    return Part(
        file.file_name,
        file.row_count,
        dead.get(file.file_name, 0),
        file.delete_row_count or 0,
        file.file_size,
        start,
        end,
        bounds.texts.get(file.file_name),
    )


def _together(parts: Sequence[Part], most: int) -> Iterator[Part]:
    """The parts or, where there are more than `most`, neighbours as one."""
    in_order = sorted(parts, key=lambda part: part.start)
    step = -(-len(in_order) // most)
    for first in range(0, len(in_order), step):
        yield _joined(in_order[first : first + step])


def _joined(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], max(parts, key=lambda part: part.end)
    return Part(
        f"{counted(len(parts), 'file')} from {first.name}",
        sum(part.rows for part in parts),
        sum(part.dead for part in parts),
        sum(part.deletes for part in parts),
        sum(part.size for part in parts),
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
        ranks = _ranks(rows)
        last, count = max(max(ranks), 1), len(files)
        names = [file.file.file_name for file in files]
        places = {n: (ranks[i] / last, ranks[count + i] / last) for i, n in enumerate(names)}
        shown = {n: (texts[i], texts[count + i]) for i, n in enumerate(names)}
        return cls(places, shown, texts[ranks.index(0)], texts[ranks.index(max(ranks))])


def _ranks(rows: pa.Table) -> list[int]:
    """The rank of each row among the distinct ones, starting at 0."""
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    names = frame.columns
    ordered = frame.unique().sort(names).with_row_index("_rank")
    return frame.join(ordered, on=names, how="left", maintain_order="left", nulls_equal=True)[
        "_rank"
    ].to_list()
