"""Commands that list tables, and show their definitions and snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa
import typer

from keytide.base.text import utc
from keytide.cli.arguments import (
    FormatOption,
    Limit,
    TableArgument,
    Warehouse,
    cache_arguments,
    full_path,
    is_path,
    open_named_table,
    open_readable_table,
    required_warehouse,
    way_into,
)
from keytide.cli.output import (
    Format,
    Part,
    Properties,
    Words,
    grid,
    note,
    write_document,
    write_rows,
)
from keytide.errors import NotFoundError
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot
from keytide.lake.external_table import ExternalTable
from keytide.lake.lake import Lake
from keytide.lake.opening import connect
from keytide.lake.table import Table
from keytide.maintenance.history.log import HistoryEntry, entries_of

__all__ = ["describe", "describe_table", "history", "list_tables", "ls", "snapshots"]

_SNAPSHOT_ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("time", pa.timestamp("ms", "UTC")),
        ("kind", pa.string()),
        ("delta_versions", pa.int64()),
        ("total_versions", pa.int64()),
        ("user", pa.string()),
        ("identifier", pa.int64()),
    ]
)


_BLANK = Words("")


def ls(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[WAREHOUSE]",
            help="Path or URI of a warehouse; default: --warehouse. A bare name is a database of "
            "--warehouse or, if there is none, a folder.",
            show_default=False,
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Argument(metavar="[DATABASE]", help="List only this database.", show_default=False),
    ] = None,
    warehouse: Warehouse = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the tables of a warehouse or of one database.

    A folder without tables is an empty warehouse. A folder that does not exist is an error.

    Example: keytide ls /data/lake shop
    """
    if place is not None and database is None and warehouse and not is_path(place):
        place, database = None, place
    address = required_warehouse(warehouse) if place is None else full_path(place)
    lake = connect(address, **cache_arguments())
    if not list_tables(lake, database, format):
        note(f"no tables in {lake.uri}{_what_else(place, database)}")


def describe(
    table: TableArgument,
    warehouse: Warehouse = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the columns, keys, options and size of a table.

    Row counts are stored rows: they include older versions and deletes until a compaction removes
    them. csv contains only the columns.

    Example: keytide describe -w /data/lake shop.orders
    """
    describe_table(open_readable_table(table, warehouse), format)


def snapshots(
    table: TableArgument,
    warehouse: Warehouse = None,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the snapshots of a table, latest first.

    delta_versions is the number of stored rows that the commit added, total_versions the number
    that the snapshot stores. Both include deletes and older versions until a compaction removes
    them.

    Example: keytide snapshots -w /data/lake shop.orders --limit 5
    """
    found = open_named_table(table, warehouse)
    write_rows(_snapshot_batches(found), _SNAPSHOT_ROWS, format, limit)


def history(
    table: TableArgument,
    warehouse: Warehouse = None,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List what each commit did to a table, latest first.

    rows_written and rows_deleted count the rows in the files of a commit. To see which rows really
    changed, read the changes between two snapshots.

    Example: keytide history -w /data/lake shop.orders --limit 5
    """
    found = open_named_table(table, warehouse)
    batches = (entry.to_arrow().to_batches()[0] for entry in entries_of(found.metadata))
    write_rows(batches, HistoryEntry.columns(), format, limit)


def list_tables(lake: Lake, database: str | None, format: Format) -> int:
    """Write the names of the tables of a lake, or of one database. Returns their number."""
    tables = lake.tables(database)
    rows = pa.table({"table": pa.array(tables, pa.string())})
    if tables or format is Format.CSV:
        write_rows(rows.to_batches(), rows.schema, format, limit=max(1, len(tables)))
    return len(tables)


def describe_table(found: Table | ExternalTable, format: Format) -> None:
    """Write a table's columns, keys and options, and the size of the stored data."""
    schema = found.table_schema
    columns = _columns(schema)
    if format is Format.CSV:
        rows = pa.Table.from_pylist(columns)
        write_rows(rows.to_batches(), rows.schema, format, limit=len(columns))
        return
    if isinstance(found, Table):
        uri, stored = found.uri, _stored(found)
    else:
        uri, stored = found.location, {"format": found.format}
    about = {"table": found.name, "uri": uri, "comment": schema.comment}
    keys = {"primary_key": schema.primary_keys, "partition_by": schema.partition_keys}
    options = dict(schema.options) if isinstance(found, Table) else found.options
    document = {**about, **keys, "columns": columns, "options": options, **stored}
    shown: list[Part] = [Properties(_shown(about | stored)), _BLANK, grid(columns)]
    if options:
        shown += [_BLANK, Properties(options)]
    write_document(document, shown, format)


def _what_else(place: str | None, database: str | None) -> str:
    """Which database was searched, and what the user may have meant."""
    within = f", database {database}" if database else ""
    if place is not None and database is None:
        way = way_into(place)
        return f"; {way}" if way else ""
    if place is None and os.path.isdir(str(database)):
        return f"{within}; to list the local folder of that name, use ./{database}"
    return within


def _shown(about: Mapping[str, Any]) -> dict[str, Any]:
    """The properties to show. An id is a name, so its digits have no commas."""
    said = {name: value for name, value in about.items() if value is not None}
    if "snapshot_id" in said:
        said["snapshot_id"] = str(said["snapshot_id"])
        time = datetime.fromisoformat(said["snapshot_time"]).replace(tzinfo=None)
        said["snapshot_time"] = f"{time.isoformat(' ', 'milliseconds')}Z"
    return said


def _columns(schema: TableSchema) -> list[dict[str, Any]]:
    return [
        {
            "column": f.name,
            "type": f.type.with_nullable(True).sql(),
            "nullable": f.type.nullable,
            "key": ", ".join(_roles(f.name, schema)),
            "default": f.default_value,
            "description": f.description,
        }
        for f in schema.fields
    ]


def _roles(column: str, schema: TableSchema) -> Iterator[str]:
    if column in schema.primary_keys:
        yield "primary"
    if column in schema.partition_keys:
        yield "partition"


def _stored(table: Table) -> dict[str, Any]:
    parts = table.scan().parts
    everything = [part.plan.funnel.stages[0] for part in parts]
    snapshot = parts[0].snapshot
    return {
        "snapshot_id": None if snapshot is None else snapshot.id,
        "snapshot_time": None if snapshot is None else _time(snapshot).isoformat(),
        "partitions": sum(stage.partitions for stage in everything),
        "buckets": sum(stage.buckets for stage in everything),
        "files": sum(stage.files for stage in everything),
        "rows_stored": sum(stage.rows for stage in everything),
        "bytes": sum(stage.bytes for stage in everything),
    }


def _snapshot_batches(table: Table) -> Iterator[pa.RecordBatch]:
    """One batch per snapshot, so that a limit reads only the snapshots that it shows."""
    for snapshot_id in reversed(table.metadata.snapshot_ids()):
        with suppress(NotFoundError):  # it expired meanwhile
            row = _snapshot_row(table.metadata.snapshot(snapshot_id))
            yield pa.RecordBatch.from_pylist([row], schema=_SNAPSHOT_ROWS)


def _snapshot_row(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "id": snapshot.id,
        "time": _time(snapshot),
        "kind": snapshot.commit_kind.value,
        "delta_versions": snapshot.delta_record_count,
        "total_versions": snapshot.total_record_count,
        "user": snapshot.commit_user,
        "identifier": snapshot.commit_identifier,
    }


def _time(snapshot: Snapshot) -> datetime:
    return utc(snapshot.time_millis)
