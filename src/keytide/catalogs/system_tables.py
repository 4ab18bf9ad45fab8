"""System tables: the metadata of a table, as tables with the column names of the format.

`table$files` in SQL is `system_table(table, "files")` here. All except `audit_log` and `ro` come
from metadata alone. Times are in UTC without a time zone, except creation times of files, which
writers store in their local time. Counts of rows are physical: they include older versions and
deletes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.row_kind import RowKind
from keytide.base.text import held_by_python
from keytide.changes.change_scan import changes_of
from keytide.errors import InvalidError, NotFoundError
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.binary_row import decode_rows
from keytide.format.data_file import VALUE_KIND
from keytide.format.manifest_entry import FileSource, ManifestEntry
from keytide.maintenance.branches import branches_of
from keytide.maintenance.history import consumers_of
from keytide.options import keys
from keytide.publish.publish import publications_of
from keytide.read.requests import scan_table
from keytide.read.scan import Scan
from keytide.read.sections import value_bounds
from keytide.snapshot.live_files import files_of
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.types import Field

Row = dict[str, Any]


def system_table(
    table: StoredTable,
    name: str,
    *,
    snapshot_id: int | None = None,
    tag: str | None = None,
    as_of: datetime | date | str | int | None = None,
) -> pa.Table:
    """The system table with that name, one of `SYSTEM_TABLES`.

    `snapshot_id`, `tag` or `as_of`, as in `Table.scan`, select the snapshot for `audit_log`,
    `buckets`, `files`, `manifests`, `options`, `partitions` and `ro`, by default the latest.
    `branches`, `consumers`, `publications`, `schemas`, `snapshots` and `tags` list everything.
    Raises `NotFoundError`, which lists the system tables, for an unknown name.
    """
    make = _TABLES.get(name)
    if make is None:
        raise NotFoundError(
            f"table {table.name} has no system table {name!r}; system tables: "
            f"{', '.join(SYSTEM_TABLES)}"
        )
    table = table.pinned()
    scan = scan_table(table, snapshot_id=snapshot_id, tag=tag, as_of=as_of)
    return make(table.metadata, scan)


def audit_log(scan: Scan) -> pa.Table:
    """The outcome of every key, with its stored kind as a string in a first column `rowkind`.

    Includes keys whose last version is a delete, as long as the delete is stored. The condition of
    the scan is true for every row.
    """
    schema = pa.schema([pa.field("rowkind", pa.string(), nullable=False), *scan.schema])
    kinds = {int(kind): kind.short for kind in RowKind}
    rowkind = pl.col(VALUE_KIND).replace_strict(kinds, return_dtype=pl.String).alias("rowkind")
    memory = scan.view.options.read_memory_bytes
    parts = [
        to_arrow(frame.with_columns(rowkind), schema)
        for task in scan.tasks()
        for frame in task.outcomes(memory)
    ]
    return pa.concat_tables([schema.empty_table(), *parts])


def changes_log(table: StoredTable, between: str, mode: str = "auto") -> pa.Table:
    """The result of `Table.changes`, with the kinds in a first column `rowkind`.

    `between` is two snapshot ids or tag names separated by a comma. `mode` is one of the modes of
    changes, or 'auto': the stored changelog if the table has one, otherwise rows as written. Raises
    the errors of `Table.changes`, and `InvalidError` for another string.
    """
    places = [text.strip() for text in between.split(",")]
    if len(places) != 2 or not all(places):
        raise InvalidError(
            f"table {table.name}: '{keys.INCREMENTAL_BETWEEN}' is {between!r}; expected two "
            "snapshot ids or tag names, such as '1,3'"
        )
    table = table.pinned()
    if mode == "auto":
        producer = table.view(table.schema).options.changelog_producer
        mode = "delta" if producer == "none" else "changelog"
    start, end = (int(text) if text.isdecimal() else text for text in places)
    rows = changes_of(table, start, end, mode).to_arrow()
    return rows.rename_columns(["rowkind", *rows.schema.names[1:]])


def read_optimized(scan: Scan) -> Scan:
    """The scan, limited to fully compacted files: nothing must be merged, but rows may be old.

    If nothing is ever merged, all files are included.
    """
    top = (scan.view.options.num_levels - 1) if scan.view.kind.keeps_versions else 0
    files = scan.live.files
    if scan.snapshot is None:
        return scan
    live = files_of(scan.snapshot, files.filter(files.column("_LEVEL") >= top))
    return replace(scan, state=replace(scan.state, live=live))


# -- versions --------------------------------------------------------------------------------------

_MILLIS = pa.timestamp("ms")


def _schema(nullable: Mapping[str, pa.DataType], *required: str) -> pa.Schema:
    return pa.schema([pa.field(n, t, nullable=n not in required) for n, t in nullable.items()])


_SNAPSHOTS = _schema(
    {
        "snapshot_id": pa.int64(),
        "schema_id": pa.int64(),
        "commit_user": pa.string(),
        "commit_identifier": pa.int64(),
        "commit_kind": pa.string(),
        "commit_time": _MILLIS,
        "base_manifest_list": pa.string(),
        "delta_manifest_list": pa.string(),
        "changelog_manifest_list": pa.string(),
        "total_record_count": pa.int64(),
        "delta_record_count": pa.int64(),
        "changelog_record_count": pa.int64(),
        "watermark": pa.int64(),
        "next_row_id": pa.int64(),
    },
    "snapshot_id", "schema_id", "commit_user", "commit_identifier", "commit_kind", "commit_time",
    "base_manifest_list", "delta_manifest_list",
)  # fmt: skip


def _snapshots(metadata: TableMetadata) -> pa.Table:
    rows = [
        {name: getattr(snapshot, name, None) for name in _SNAPSHOTS.names}
        | {
            "snapshot_id": snapshot.id,
            "commit_kind": snapshot.commit_kind.value,
            "commit_time": snapshot.time_millis,
        }
        for snapshot in metadata.snapshots()
    ]
    return pa.Table.from_pylist(rows, schema=_SNAPSHOTS)


_CONSUMERS = _schema(
    {"consumer_id": pa.string(), "next_snapshot_id": pa.int64()}, "consumer_id", "next_snapshot_id"
)


def _consumers(metadata: TableMetadata) -> pa.Table:
    rows = [
        {"consumer_id": each.name, "next_snapshot_id": each.next_snapshot}
        for each in consumers_of(metadata)
    ]
    return pa.Table.from_pylist(rows, schema=_CONSUMERS)


_SCHEMAS = _schema(
    {
        "schema_id": pa.int64(),
        "fields": pa.string(),
        "partition_keys": pa.string(),
        "primary_keys": pa.string(),
        "options": pa.string(),
        "comment": pa.string(),
        "update_time": _MILLIS,
    },
    "schema_id", "fields", "partition_keys", "primary_keys", "options", "update_time",
)  # fmt: skip


def _schemas(metadata: TableMetadata) -> pa.Table:
    newest = metadata.newest_schema().id
    rows = [
        {
            "schema_id": schema.id,
            "fields": _json([f.to_json() for f in schema.fields]),
            "partition_keys": _json(schema.partition_keys),
            "primary_keys": _json(schema.primary_keys),
            "options": _json(schema.options),
            "comment": schema.comment,
            "update_time": schema.time_millis,
        }
        for schema in map(metadata.schema, range(newest + 1))
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMAS)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_OPTIONS = _schema({"key": pa.string(), "value": pa.string()}, "key", "value")


def _options(scan: Scan) -> pa.Table:
    options = scan.view.schema.options
    rows = [{"key": key, "value": value} for key, value in sorted(options.items())]
    return pa.Table.from_pylist(rows, schema=_OPTIONS)


_TAGS = _schema(
    {
        "tag_name": pa.string(),
        "snapshot_id": pa.int64(),
        "schema_id": pa.int64(),
        "commit_time": _MILLIS,
        "record_count": pa.int64(),
        "create_time": _MILLIS,
        "time_retained": pa.string(),
    },
    "tag_name", "snapshot_id", "schema_id", "commit_time",
)  # fmt: skip


def _tags(metadata: TableMetadata) -> pa.Table:
    rows = []
    for name, tag in metadata.tags().items():
        created, retained = tag.create_time_ns, tag.time_retained_ns
        row = {
            "tag_name": name,
            "snapshot_id": tag.snapshot.id,
            "schema_id": tag.snapshot.schema_id,
            "commit_time": tag.snapshot.time_millis,
            "record_count": tag.snapshot.total_record_count,
            "create_time": None if created is None else created // 1_000_000,
            "time_retained": None if retained is None else _duration(retained),
        }
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_TAGS)


_BRANCHES = _schema(
    {"branch_name": pa.string(), "create_time": _MILLIS}, "branch_name", "create_time"
)


def _branches(metadata: TableMetadata) -> pa.Table:
    rows = [
        {"branch_name": branch.name, "create_time": branch.create_time.replace(tzinfo=None)}
        for branch in branches_of(metadata)
    ]
    return pa.Table.from_pylist(rows, schema=_BRANCHES)


def _duration(nanoseconds: int) -> str:
    """An ISO 8601 duration such as PT36H or PT1M0.5S."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    tail = f"{seconds}.{fraction:09}".rstrip("0").rstrip(".")
    parts = [(hours, f"{hours}H"), (minutes, f"{minutes}M"), (seconds + fraction, f"{tail}S")]
    return "PT" + ("".join(text for value, text in parts if value) or "0S")


# -- files -----------------------------------------------------------------------------------------

_FILES = _schema(
    {
        "partition": pa.string(),
        "bucket": pa.int32(),
        "file_path": pa.string(),
        "file_format": pa.string(),
        "schema_id": pa.int64(),
        "level": pa.int32(),
        "record_count": pa.int64(),
        "file_size_in_bytes": pa.int64(),
        "min_key": pa.string(),
        "max_key": pa.string(),
        "null_value_counts": pa.string(),
        "min_value_stats": pa.string(),
        "max_value_stats": pa.string(),
        "min_sequence_number": pa.int64(),
        "max_sequence_number": pa.int64(),
        "creation_time": _MILLIS,
        "deleteRowCount": pa.int64(),
        "file_source": pa.string(),
        "first_row_id": pa.int64(),
        "write_cols": pa.list_(pa.string()),
    },
    "bucket", "file_path", "file_format", "schema_id", "level", "record_count",
    "file_size_in_bytes", "null_value_counts", "min_value_stats", "max_value_stats",
)  # fmt: skip


def _files(scan: Scan) -> pa.Table:
    view, entries = scan.view, scan.live.entries
    key = view.schema.trimmed_primary_key_fields()
    rows = []
    for entry, statistics in zip(entries, _statistics(entries, scan), strict=True):
        file = entry.file
        row = {
            "partition": _braced(entry.partition, view.schema.partition_fields()),
            "bucket": entry.bucket,
            "file_path": file.external_path or view.store.uri_of(view.file_path(entry)),
            "file_format": file.file_name.rsplit(".", 1)[-1],
            "schema_id": file.schema_id,
            "level": file.level,
            "record_count": file.row_count,
            "file_size_in_bytes": file.file_size,
            "min_key": f"[{', '.join(_texts(file.min_key, key))}]" if key else None,
            "max_key": f"[{', '.join(_texts(file.max_key, key))}]" if key else None,
            "min_sequence_number": file.min_sequence_number,
            "max_sequence_number": file.max_sequence_number,
            "creation_time": file.creation_time,
            "deleteRowCount": file.delete_row_count,
            "file_source": None if file.file_source is None else FileSource(file.file_source).name,
            "first_row_id": file.first_row_id,
            "write_cols": file.write_cols,
        }
        rows.append(row | statistics)
    return pa.Table.from_pylist(rows, schema=_FILES)


def _statistics(entries: Sequence[ManifestEntry], scan: Scan) -> list[Row]:
    """Statistics of each file by column of the schema that is read, NULL if unknown."""
    if not entries:
        return []
    fields = sorted(scan.view.schema.fields, key=lambda f: f.name)
    bounds = held_by_python(value_bounds(entries, fields, scan.view.schemas)).to_dicts()

    def listed(row: Row, part: str) -> str:
        return "{" + ", ".join(f"{f.name}={_value(row[f'{f.name}.{part}'])}" for f in fields) + "}"

    return [
        {
            "null_value_counts": listed(row, "nulls"),
            "min_value_stats": listed(row, "min"),
            "max_value_stats": listed(row, "max"),
        }
        for row in bounds
    ]


_TOTALS = {
    "record_count": pa.int64(),
    "file_size_in_bytes": pa.int64(),
    "file_count": pa.int64(),
    "last_update_time": _MILLIS,
}
_BUCKETS = _schema(
    {"partition": pa.string(), "bucket": pa.int32(), **_TOTALS},
    "bucket", "record_count", "file_size_in_bytes", "file_count",
)  # fmt: skip
_PARTITIONS = _schema(
    {
        "partition": pa.string(),
        **_TOTALS,
        "created_at": _MILLIS,
        "created_by": pa.string(),
        "updated_by": pa.string(),
        "options": pa.string(),
        "total_buckets": pa.int32(),
        "done": pa.bool_(),
    },
    "record_count", "file_size_in_bytes", "file_count", "total_buckets", "done",
)  # fmt: skip


def _buckets(scan: Scan) -> pa.Table:
    fields = scan.view.schema.partition_fields()
    groups = _grouped(scan.live.entries, lambda entry: (entry.partition, entry.bucket))
    rows = [
        {"partition": _braced(partition, fields), "bucket": bucket, **_totals(entries)}
        for (partition, bucket), entries in groups.items()
    ]
    rows.sort(key=lambda row: (row["partition"], row["bucket"]))
    return pa.Table.from_pylist(rows, schema=_BUCKETS)


def _partitions(scan: Scan) -> pa.Table:
    """Columns that only a catalog service knows, such as the creator of a partition, are NULL."""
    fields = scan.view.schema.partition_fields()
    null_name = scan.view.options.partition_default_name
    groups = _grouped(scan.live.entries, lambda entry: entry.partition)
    rows: list[Row] = []
    for partition, entries in groups.items():
        named = "/".join(
            f"{field.name}={null_name if value is None else _value(value)}"
            for field, value in zip(fields, _values(partition, fields), strict=True)
        )
        buckets = entries[-1].total_buckets
        totals = _totals(entries)
        rows.append({"partition": named, **totals, "total_buckets": buckets, "done": False})
    rows.sort(key=lambda row: row["partition"])
    return pa.Table.from_pylist(rows, schema=_PARTITIONS)


def _grouped(
    entries: Iterable[ManifestEntry], key: Callable[[ManifestEntry], Any]
) -> dict[Any, list[ManifestEntry]]:
    groups: dict[Any, list[ManifestEntry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def _totals(entries: Sequence[ManifestEntry]) -> Row:
    files = [entry.file for entry in entries]
    times = [file.creation_time for file in files if file.creation_time is not None]
    return {
        "record_count": sum(file.row_count for file in files),
        "file_size_in_bytes": sum(file.file_size for file in files),
        "file_count": len(files),
        "last_update_time": max(times, default=None),
    }


_MANIFESTS = _schema(
    {
        "file_name": pa.string(),
        "file_size": pa.int64(),
        "num_added_files": pa.int64(),
        "num_deleted_files": pa.int64(),
        "schema_id": pa.int64(),
        "min_partition_stats": pa.string(),
        "max_partition_stats": pa.string(),
        "min_row_id": pa.int64(),
        "max_row_id": pa.int64(),
    },
    "file_name", "file_size", "num_added_files", "num_deleted_files", "schema_id",
)  # fmt: skip


def _manifests(metadata: TableMetadata, scan: Scan) -> pa.Table:
    if scan.snapshot is None:
        return _MANIFESTS.empty_table()
    fields = scan.view.schema.partition_fields()
    manifests = (*metadata.base_manifests(scan.snapshot), *metadata.delta_manifests(scan.snapshot))
    rows = [
        {name: getattr(manifest, name, None) for name in _MANIFESTS.names}
        | {
            "min_partition_stats": _braced(manifest.partition_stats.min_values, fields),
            "max_partition_stats": _braced(manifest.partition_stats.max_values, fields),
        }
        for manifest in manifests
    ]
    return pa.Table.from_pylist(rows, schema=_MANIFESTS)


# -- values as strings -----------------------------------------------------------------------------


def _braced(row: bytes, fields: Sequence[Field]) -> str:
    return "{" + ", ".join(_texts(row, fields)) + "}"


def _texts(row: bytes, fields: Sequence[Field]) -> list[str]:
    return [_value(value) for value in _values(row, fields)]


def _values(row: bytes, fields: Sequence[Field]) -> list[Any]:
    if not fields:
        return []
    nullable = [f.type.with_nullable(True) for f in fields]
    columns = dict(zip([f.name for f in fields], decode_rows([row], nullable), strict=True))
    return [*held_by_python(from_arrow(pa.table(columns))).row(0)]


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, date) else str(value)


_TABLES: Mapping[str, Callable[[TableMetadata, Scan], pa.Table]] = {
    "audit_log": lambda _, scan: audit_log(scan),
    "branches": lambda metadata, _: _branches(metadata),
    "buckets": lambda _, scan: _buckets(scan),
    "consumers": lambda metadata, _: _consumers(metadata),
    "files": lambda _, scan: _files(scan),
    "manifests": _manifests,
    "options": lambda _, scan: _options(scan),
    "partitions": lambda _, scan: _partitions(scan),
    "publications": lambda metadata, _: publications_of(StoredTable.of(metadata)).to_arrow(),
    "ro": lambda _, scan: read_optimized(scan).to_arrow(),
    "schemas": lambda metadata, _: _schemas(metadata),
    "snapshots": lambda metadata, _: _snapshots(metadata),
    "tags": lambda metadata, _: _tags(metadata),
}
SYSTEM_TABLES = tuple(_TABLES)
"""The names, sorted."""
