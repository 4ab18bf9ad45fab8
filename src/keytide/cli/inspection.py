"""Commands that show tables: their definitions, snapshots and rows, and how a read would run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa
import typer

from keytide.base.text import counted, utc
from keytide.cli.common_options import (
    AsOf,
    Columns,
    FormatOption,
    Limit,
    SnapshotId,
    TableArgument,
    Tag,
    Warehouse,
    Where,
    cache_arguments,
    full_path,
    hint_to_enter,
    is_path,
    names,
    open_named_table,
    open_readable_table,
    required_warehouse,
)
from keytide.cli.output import (
    Format,
    Paragraph,
    Part,
    Properties,
    grid,
    note,
    records,
    tracked_batches,
    write_document,
    write_rows,
)
from keytide.definition.kind import require_key
from keytide.errors import NotFoundError, UnsupportedError
from keytide.lake.external_tables import ExternalTable
from keytide.lake.lake import Lake
from keytide.lake.opening import connect
from keytide.lake.table import Table
from keytide.maintenance.history import HistoryEntry, entries_of
from keytide.predicate.literals import key_of_texts
from keytide.read.fallback import FallbackExplanation
from keytide.read.scan import Explanation
from keytide.sources.scan import ExternalExplanation

# -- lists and descriptions of tables, and their snapshots -----------------------------------------


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


_BLANK = Paragraph("")


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
    if list_tables(lake, database, format):
        return

    # Which database was searched, and what the user may have meant.
    hint = f", database {database}" if database else ""
    if place is not None and database is None:
        way = hint_to_enter(place)
        hint = f"; {way}" if way else ""
    elif place is None and os.path.isdir(str(database)):
        hint += f"; to list the local folder of that name, use ./{database}"
    note(f"no tables in {lake.uri}{hint}")


def describe(
    table: TableArgument, warehouse: Warehouse = None, format: FormatOption = Format.TABLE
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
    roles = {"primary": schema.primary_keys, "partition": schema.partition_keys}
    columns = [
        {
            "column": f.name,
            "type": f.type.with_nullable(True).sql(),
            "nullable": f.type.nullable,
            "key": ", ".join(role for role, names in roles.items() if f.name in names),
            "default": f.default_value,
            "description": f.description,
        }
        for f in schema.fields
    ]
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
    said = {name: value for name, value in (about | stored).items() if value is not None}
    if "snapshot_id" in said:
        said["snapshot_id"] = str(said["snapshot_id"])  # a name, so its digits have no commas
        time = datetime.fromisoformat(said["snapshot_time"]).replace(tzinfo=None)
        said["snapshot_time"] = f"{time.isoformat(' ', 'milliseconds')}Z"
    shown: list[Part] = [Properties(said), _BLANK, grid(columns)]
    if options:
        shown += [_BLANK, Properties(options)]
    write_document(document, shown, format)


def _stored(table: Table) -> dict[str, Any]:
    parts = table.scan().parts
    everything = [part.plan.funnel.stages[0] for part in parts]
    snapshot = parts[0].snapshot
    return {
        "snapshot_id": None if snapshot is None else snapshot.id,
        "snapshot_time": None if snapshot is None else utc(snapshot.time_millis).isoformat(),
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
            snapshot = table.metadata.snapshot(snapshot_id)
            row = {
                "id": snapshot.id,
                "time": utc(snapshot.time_millis),
                "kind": snapshot.commit_kind.value,
                "delta_versions": snapshot.delta_record_count,
                "total_versions": snapshot.total_record_count,
                "user": snapshot.commit_user,
                "identifier": snapshot.commit_identifier,
            }
            yield pa.RecordBatch.from_pylist([row], schema=_SNAPSHOT_ROWS)


# -- rows, and plans of reads ----------------------------------------------------------------------


_Key = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY...",
        help="Values of the primary key columns, in order. Put -- before a negative number.",
        show_default=False,
    ),
]


def scan(
    table: TableArgument,
    warehouse: Warehouse = None,
    columns: Columns = None,
    where: Where = None,
    limit: Limit = None,
    snapshot_id: SnapshotId = None,
    tag: Tag = None,
    as_of: AsOf = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Read the rows of a table, one merged row per key.

    json writes JSON lines, one object per row. The order of the rows is not guaranteed. Memory use
    is bounded, however many rows there are.

    Example: keytide scan /data/lake/shop.db/orders --where "status = 'open'" --limit 10
    """
    found = open_readable_table(table, warehouse)
    when = _when(found, snapshot_id, tag, as_of)
    wanted = found.scan(names(columns) or None, where, **when)
    write_rows(tracked_batches(wanted), wanted.schema, format, limit)


def get(
    table: TableArgument,
    key: _Key,
    warehouse: Warehouse = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Look up the row of one key.

    The exit code is 1 if there is no such row. Write values as json does: dates and times in ISO
    8601, bytes in base64.

    Example: keytide get -w /data/lake shop.order_lines 4711 2
    """
    found = open_readable_table(table, warehouse)
    values = _key_of(found, key)
    row = found.get(values)
    if row is None:
        raise NotFoundError(f"table {found.name} has no row with {_values_text(values, key)}")
    rows = pa.Table.from_pylist([row], schema=found.schema)
    write_rows(rows.to_batches(), rows.schema, format)


def why(
    table: TableArgument,
    key: _Key,
    warehouse: Warehouse = None,
    snapshot_id: SnapshotId = None,
    tag: Tag = None,
    as_of: AsOf = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Explain how the row of a key was merged.

    Shows every stored version in merge order and its effect, and for each column the versions that
    its value comes from. csv contains only the versions. The exit code is 1 if no version is
    stored.

    Example: keytide why -w /data/lake shop.order_lines 4711 2
    """
    found = open_readable_table(table, warehouse)
    values = _key_of(found, key)
    story = found.why(values, **_when(found, snapshot_id, tag, as_of))
    versions = story.to_arrow()
    if not versions.num_rows:
        raise NotFoundError(f"table {found.name} stores no version of {_values_text(values, key)}")
    if format is Format.CSV:
        write_rows(versions.to_batches(), versions.schema, format)
        return
    stored, row = records(versions), story.row
    if row is not None:
        columns = [field for field in versions.schema if field.name in row]
        (row,) = records(pa.Table.from_pylist([row], schema=pa.schema(columns)))
    document = {
        "table": story.table,
        "key": {name: stored[0][name] for name in story.key},
        "snapshot_id": story.snapshot_id,
        "merge_engine": story.merge_engine,
        "versions": stored,
        "row": row,
        "taken": story.taken,
    }
    write_document(document, [Paragraph(str(story))], format)


def explain(
    table: TableArgument,
    warehouse: Warehouse = None,
    columns: Columns = None,
    where: Where = None,
    snapshot_id: SnapshotId = None,
    tag: Tag = None,
    as_of: AsOf = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the plan of a scan without reading data.

    Shows how many partitions, buckets, files, rows and bytes remain after each pruning step, and
    how many files must be merged.

    Example: keytide explain -w /data/lake shop.orders --where "order_id = 4711"
    """
    found = open_readable_table(table, warehouse)
    when = _when(found, snapshot_id, tag, as_of)
    explained = found.scan(names(columns) or None, where, **when).explain()
    lines: list[dict[str, Any]] = []
    shown: list[Part] = []
    if isinstance(explained, ExternalExplanation):
        document = asdict(explained)
        lines, shown = [document], [Paragraph(str(explained))]
    elif isinstance(explained, FallbackExplanation):
        document = {}
        for branch, plan in (("first", explained.first), ("fallback", explained.fallback)):
            document[branch], stages = _plan_document(plan, shown)
            lines += [{"table": plan.table, **stage} for stage in stages]
    else:
        document, lines = _plan_document(explained, shown)
    if format is Format.CSV:
        rows = pa.Table.from_pylist(lines)
        write_rows(rows.to_batches(), rows.schema, format)
    else:
        write_document(document, shown, format)


def _plan_document(
    plan: Explanation, shown: list[Part]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A plan as a document, and its stages. Adds what people read of it to `shown`."""
    stages = [asdict(stage) for stage in plan.funnel.stages]
    title, *_, merging = str(plan).splitlines()
    shown += [Paragraph(title, "bold"), grid(stages), Paragraph(merging)]
    return {**asdict(plan), "funnel": stages}, stages


def _when(
    table: Table | ExternalTable, snapshot_id: int | None, tag: str | None, as_of: Any
) -> dict[str, Any]:
    """The arguments for time travel."""
    if isinstance(table, Table):
        return {"snapshot_id": snapshot_id, "tag": tag, "as_of": as_of}
    if as_of is not None or (snapshot_id is not None and tag is not None):
        raise UnsupportedError(
            f"table {table.name} is an external table; select a version with --snapshot-id or "
            "--tag, not with a time"
        )
    return {"version": snapshot_id if tag is None else tag}


def _values_text(values: Mapping[str, Any], texts: Sequence[str]) -> str:
    return ", ".join(f"{name} = {text}" for name, text in zip(values, texts, strict=True))


def _key_of(table: Table | ExternalTable, texts: list[str]) -> dict[str, Any]:
    schema = table.table_schema
    require_key(schema, table.name, "a lookup by key", "Query it with keytide sql")
    if len(texts) != len(schema.primary_keys):
        raise typer.BadParameter(
            f"the primary key of {table.name} is {', '.join(schema.primary_keys)}; found "
            f"{counted(len(texts), 'value')}: {' '.join(texts)}"
        )
    return key_of_texts(texts, schema.select(schema.primary_keys), table.name)
