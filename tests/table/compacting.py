"""Compactions as other engines of the format make them; Keytide itself makes none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import polars as pl

import keytide as kt
from keytide.format.arrow import to_arrow
from keytide.format.data_file import RunWriter
from keytide.format.manifest import FileKind, FileSource, ManifestEntry
from keytide.format.snapshot import CommitKind
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND
from keytide.table.commit.commit import Author, Change
from keytide.table.read.task import ReadTask
from keytide.types import arrow_schema


def compact(table: kt.Table, level: int) -> None:
    """Fold the files up to a level into one file on it. For a table of one bucket."""
    gone = [entry for entry in table.scan().live.entries if entry.file.level <= level]
    _replace(table, gone, pl.concat([_versions(table, entry) for entry in gone]), level)


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
    _replace(table, gone, pl.concat(news), level)


def _versions(table: kt.Table, entry: ManifestEntry) -> pl.DataFrame:
    view = table.scan().view
    return ReadTask(view, entry.partition, (), view.schema.names).versions(entry)


def _replace(
    table: kt.Table, gone: Sequence[ManifestEntry], versions: pl.DataFrame, level: int
) -> None:
    scan = table.scan()
    view = scan.view
    merged = view.engine.merge(view.order.sort(versions))
    system = {SEQUENCE_NUMBER: "BIGINT NOT NULL", VALUE_KIND: "TINYINT NOT NULL"}
    fields = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in system.items()]
    file = RunWriter(view.store, view.schema).write_file(
        to_arrow(merged, arrow_schema([*view.schema.fields, *fields])),
        f"{view.bucket_directory(gone[0].partition, 0)}/data-{uuid4()}.parquet",
        level=level,
        source=FileSource.COMPACT,
    )
    changed = [replace(entry, kind=FileKind.DELETE) for entry in gone]
    change = Change(
        (*changed, replace(gone[0], file=file)), Author(str(uuid4())), kind=CommitKind.COMPACT
    )
    table.commit(view, change, scan.live)
