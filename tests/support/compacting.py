"""Compactions as other engines of the format make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import polars as pl

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.compaction import compact as compaction
from keytide.compaction.strategy import Unit, sorted_runs
from keytide.format.arrow import to_arrow
from keytide.format.data_file import RunWriter
from keytide.format.manifest_entry import FileKind, FileSource, ManifestEntry
from keytide.format.snapshot import CommitKind
from keytide.merge.engines import compacts_by_lookup
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND
from keytide.read.merged_versions import MergedVersions
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions
from keytide.read.sections import PlannedFile, sections_of
from keytide.tasks import Threads
from keytide.types import arrow_schema
from keytide.write.task import TaskResult
from new_tables import fields_of
from publishing import publish


def compact(table: kt.Table, level: int, memory_bytes: int = 1 << 30) -> None:
    """Fold the files up to a level into one file on it. For a table of one bucket."""
    gone = [entry for entry in table.scan().live.entries if entry.file.level <= level]
    _replace(table, gone, merged_versions(table, gone, memory_bytes), level)


def compact_newest(table: kt.Table, count: int) -> str:
    """Compact so many of the newest runs of a table of one bucket, and say how it went.

    More of them where the format wants it: level 0 as a whole, and no level twice.
    """
    transaction = compaction.begin_compaction(table.stored)
    runs = sorted_runs(transaction.state.live.entries)
    if not runs:
        return "nothing"
    view = transaction.view
    apart = view.engine.why_kept_apart is not None
    needs_all = apart or (view.engine.needs_oldest and not compacts_by_lookup(view.options))
    while count < len(runs) and (runs[count].level in (0, 1) or needs_all):
        count += 1
    is_whole = count >= len(runs)
    level = 5 if is_whole else max(1, runs[count].level - 1)
    unit = Unit(tuple(runs[:count]), level, is_whole)
    compaction.compact_units(transaction, [unit], Threads(1))
    return "whole" if is_whole else "part"


def merged_versions(
    table: kt.Table, entries: Sequence[ManifestEntry], memory_bytes: int = 1 << 30
) -> pl.DataFrame:
    """What files of one bucket become, with numbers and kinds, in key order."""
    view = table.scan().view
    bucket = (entries[0].partition, entries[0].bucket)
    (plan,) = sections_of({bucket: [PlannedFile(entry) for entry in entries]}, view)
    columns = (*view.schema.names, *SYSTEM_COLUMNS)
    windows = MergedVersions(view, columns).of(plan, memory_bytes)
    in_order = [
        pl.concat([piece.select(columns) for piece in window]).sort(view.order.key)
        for window in windows
    ]
    merged: pl.DataFrame = pl.concat(in_order)
    return merged


def stored_versions(table: kt.Table, entries: Sequence[ManifestEntry]) -> pl.DataFrame:
    """All versions in files of one bucket, as they are stored."""
    return pl.concat([_versions(table, entry) for entry in entries])


def compact_by_lookup(table: kt.Table, level: int) -> None:
    """Fold the files up to a level into one file on it, as tables with a lookup do.

    A key that has versions on level 0 is looked up on the levels above, where what is found stays
    in place; of several upper versions of a key the one on the lowest level counts. For a table of
    one bucket.
    """
    entries = table.scan().live.entries
    gone = [entry for entry in entries if entry.file.level <= level]
    stored = {entry.file.file_name: _versions(table, entry) for entry in entries}
    above = sorted({entry.file.level for entry in entries} - {0})
    news = [stored[e.file.file_name] for e in gone if e.file.level == 0]
    if not news:
        return
    keys = table.scan().view.order.key
    touched = pl.concat([rows.select(keys) for rows in news]).unique()
    taken = touched.clear()
    for upper in above:
        for entry in (e for e in entries if e.file.level == upper):
            found = stored[entry.file.file_name].join(taken, on=keys, how="anti")
            taken = pl.concat([taken, found.select(keys)])
            is_input = upper <= level
            news.append(found if is_input else found.join(touched, on=keys, how="semi"))
    view = table.scan().view
    _replace(table, gone, view.engine.merge(view.order.sort(pl.concat(news))), level)


def _versions(table: kt.Table, entry: ManifestEntry) -> pl.DataFrame:
    view = table.scan().view
    stored = StoredVersions(view, entry.partition, (*view.schema.names, *SYSTEM_COLUMNS))
    return stored.of_file(PlannedFile(entry))


def _replace(
    table: kt.Table, gone: Sequence[ManifestEntry], merged: pl.DataFrame, level: int
) -> None:
    scan = table.scan()
    view = scan.view
    system = {SEQUENCE_NUMBER: "BIGINT NOT NULL", VALUE_KIND: "TINYINT NOT NULL"}
    fields = fields_of(system)
    file = RunWriter(view.store, view.schema).write_file(
        to_arrow(merged, arrow_schema([*view.schema.fields, *fields])),
        f"{view.bucket_directory(gone[0].partition, 0)}/data-{uuid4()}.parquet",
        level=level,
        source=FileSource.COMPACT,
    )
    changed = [replace(entry, kind=FileKind.DELETE) for entry in gone]
    made = TaskResult((*changed, replace(gone[0], file=file)))
    change = Change(made, Author.fresh(), kind=CommitKind.COMPACT)
    publish(table, view, change, scan.live)
